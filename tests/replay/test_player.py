"""The player: which answer a request gets, and what is recorded."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from anaphora.errors import FixtureIntegrityFailed, InvalidRequest, Io, NoFixture
from anaphora.replay import FixtureStore, Player
from anaphora.replay.fixture import Fixture
from anaphora.replay.keys import ReplayRequest
from anaphora.replay.player import Mode, Recording

KEY = "sk-ant-api03-canary-9aF3xLq8ZtP2"


def asked(text: str = "Hello?", **fields: Any) -> ReplayRequest:
    content = [{"type": "text", "text": text}]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    return ReplayRequest(
        method="POST",
        provider="anthropic",
        path="/v1/messages",
        headers={"x-api-key": KEY},
        body=json.dumps(body | fields).encode(),
    )


def record(player: Player, request: ReplayRequest, *answers: str, status: int = 200) -> None:
    for answer in answers:
        recording = player.look_up(request)
        assert isinstance(recording, Recording)
        recording.add(answer.encode())
        recording.finish(status, (("content-type", "application/json"),))


def answer(player: Player, request: ReplayRequest) -> str:
    fixture = player.look_up(request)
    assert isinstance(fixture, Fixture)
    return fixture.payload.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two answers to one request, and one to another."""
    player = Player(tmp_path / "recordings", "new")
    record(player, asked(), "one", "two")
    record(player, asked("Bye."), "three")
    player.close()
    return tmp_path / "recordings"


# ── Modes ────────────────────────────────────────────────────────────────────────────────────────

#: What happens to a request that is recorded once, and to one that is not.
MODES: list[tuple[Mode, str, str]] = [
    ("none", "replayed", "missing"),
    ("once", "replayed", "missing"),
    ("new", "replayed", "recorded"),
    ("all", "recorded", "recorded"),
]


@pytest.mark.parametrize(("mode", "known", "unknown"), MODES)
def test_modes(folder: Path, mode: Mode, known: str, unknown: str) -> None:
    player = Player(folder, mode)

    def outcome(request: ReplayRequest) -> str:
        try:
            found = player.look_up(request)
        except NoFixture:
            return "missing"
        return "replayed" if isinstance(found, Fixture) else "recorded"

    assert (outcome(asked("Bye.")), outcome(asked("Else?"))) == (known, unknown)


def test_once_records_in_a_new_folder(tmp_path: Path) -> None:
    player = Player(tmp_path / "new", "once")
    record(player, asked(), "one", "two")
    player.close()
    again = Player(tmp_path / "new", "once")
    assert [answer(again, asked()) for _ in range(2)] == ["one", "two"]
    assert (player.report.recorded, again.report.replayed) == (2, 2)


def test_none_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Io, match="no such folder"):
        Player(tmp_path / "missing", "none")
    assert not (tmp_path / "missing").exists()


def test_all_replaces_the_recordings_of_a_request(folder: Path) -> None:
    player = Player(folder, "all")
    record(player, asked(), "new one")
    player.close()
    again = Player(folder, "none")
    assert answer(again, asked()) == "new one"
    assert answer(again, asked("Bye.")) == "three"
    with pytest.raises(NoFixture):
        again.look_up(asked())


def test_new_records_after_the_last_answer(folder: Path) -> None:
    player = Player(folder, "new")
    assert answer(player, asked("Bye.")) == "three"
    record(player, asked("Bye."), "four", "five")
    player.close()
    again = Player(folder, "none")
    assert [answer(again, asked("Bye.")) for _ in range(3)] == ["three", "four", "five"]


@pytest.mark.parametrize(("name", "value"), [("mode", "record"), ("repeat", True)])
def test_wrong_option_is_named(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: must be one of .*, not {value!r}"):
        Player(tmp_path, **{name: value})


def test_changed_folder_is_not_served(folder: Path) -> None:
    next(folder.glob("*.json")).write_text("{}")
    with pytest.raises(FixtureIntegrityFailed):
        Player(folder, "none")


# ── The same request again ───────────────────────────────────────────────────────────────────────


def test_answers_come_in_their_order(folder: Path) -> None:
    player = Player(folder, "none")
    assert [answer(player, asked()) for _ in range(2)] == ["one", "two"]
    with pytest.raises(
        NoFixture, match='is recorded 2 times and was sent once more; repeat="last"'
    ):
        player.look_up(asked())


def test_last_answer_is_repeated(folder: Path) -> None:
    player = Player(folder, "none", repeat="last")
    assert [answer(player, asked()) for _ in range(4)] == ["one", "two", "two", "two"]


def test_answers_are_recorded_in_the_order_of_the_requests(tmp_path: Path) -> None:
    player = Player(tmp_path, "new")
    first, second, third = (player.look_up(asked()) for _ in range(3))
    assert isinstance(first, Recording)
    assert isinstance(second, Recording)
    assert isinstance(third, Recording)
    for recording, text in ((third, "third"), (first, "first")):
        recording.add(text.encode())
        recording.finish(200)
    second.discard()
    player.close()
    again = Player(tmp_path, "none")
    assert [answer(again, asked()) for _ in range(2)] == ["first", "third"]


def test_answer_behind_an_open_one_is_kept_by_close(tmp_path: Path) -> None:
    player = Player(tmp_path, "new")
    player.look_up(asked())
    record(player, asked(), "second")
    player.close()
    assert answer(Player(tmp_path, "none"), asked()) == "second"


def test_threads_share_the_answers(tmp_path: Path) -> None:
    recorder = Player(tmp_path, "new")
    texts = [f"answer {number}" for number in range(40)]
    record(recorder, asked(), *texts)
    recorder.close()
    player, found = Player(tmp_path, "none"), list[str]()

    def ask() -> None:
        for _ in range(10):
            found.append(answer(player, asked()))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(texts)


def test_processes_replay_one_folder_independently(folder: Path) -> None:
    program = (
        "import sys\n"
        "from anaphora.replay.keys import ReplayRequest\n"
        "from anaphora.replay.player import Player\n"
        "player, body = Player(sys.argv[1], 'none'), sys.argv[2].encode()\n"
        "request = ReplayRequest(\n"
        "    method='POST', provider='anthropic', path='/v1/messages', body=body\n"
        ")\n"
        "print(player.look_up(request).payload, player.look_up(request).payload)\n"
    )
    command = [sys.executable, "-c", program, str(folder), asked().body.decode()]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in running] == ["b'one' b'two'\n"] * 2


# ── Misses ───────────────────────────────────────────────────────────────────────────────────────


def test_miss_names_the_nearest_recording_and_the_difference(tmp_path: Path) -> None:
    long = "The file has many lines, as files do. " * 22
    recorder = Player(tmp_path, "new")
    record(recorder, asked("Something else, which is much shorter."), "other")
    record(recorder, asked(f"{long}It has 40 lines."), "near")
    recorder.close()
    player = Player(tmp_path, "none")
    with pytest.raises(NoFixture) as caught:
        player.look_up(asked(f"{long}It has 41 lines."))
    reason = caught.value.reason
    assert reason.endswith(
        'recorded "…s, as files do. It has 40 lines.", asked "…s, as files do. It has 41 lines.",'
        " differs in messages[0].content[0].text at character 844"
    )
    assert player.report.misses == (f"POST /v1/messages: {reason}",)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "n"}, 'recorded "m", asked "n", differs in model at character 0'),
        ({"max_tokens": 8}, "recorded 9, asked 8, differs in max_tokens"),
        ({"temperature": 0.5}, "recorded nothing, asked 0.5, differs in temperature"),
        (
            {"messages": [{"role": "user", "content": "Hello?"}, {"role": "user", "content": "x"}]},
            'recorded nothing, asked {"type":"text","text":"x"}, differs in messages[0].content[1]',
        ),
    ],
)
def test_difference(folder: Path, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(NoFixture) as caught:
        Player(folder, "none").look_up(asked(**change))
    assert caught.value.reason.endswith(expected)


def test_miss_in_an_empty_folder(tmp_path: Path) -> None:
    FixtureStore.open(tmp_path / "empty", create=True)
    with pytest.raises(NoFixture, match="nothing like it is recorded"):
        Player(tmp_path / "empty", "none").look_up(asked())


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(stream=True), "recorded nothing, asked true, differs in stream"),
        (
            msgspec.structs.replace(asked(), path="/v1/messages/count_tokens"),
            'recorded "/v1/messages", asked "/v1/messages/count_tokens", differs in path',
        ),
        (
            msgspec.structs.replace(asked(), provider="deepseek"),
            'recorded "anthropic", asked "deepseek", differs in provider at character 0',
        ),
    ],
    ids=["stream", "path", "provider"],
)
def test_difference_of_the_form_is_named(
    folder: Path, request_: ReplayRequest, expected: str
) -> None:
    with pytest.raises(NoFixture) as caught:
        Player(folder, "none").look_up(request_)
    assert expected in caught.value.reason


def test_miss_shows_no_secret(folder: Path) -> None:
    """One that is in a prompt, where the recording has a placeholder."""
    recorder = Player(folder, "new", secrets=[f"{KEY}-other"])
    record(recorder, asked(f"My key is {KEY}, yes?"), f"{KEY} is yours")
    recorder.close()
    player = Player(folder, "none")
    with pytest.raises(NoFixture) as caught:
        player.look_up(asked(f"My key is {KEY}, no?"))
    assert KEY not in str(caught.value)
    assert "<secret>, no?" in str(caught.value)
    assert not any(KEY.encode() in path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize(
    "address",
    [{"path": f"/{KEY}/v1/messages"}, {"query": f"session_token={KEY}"}, {"query": f"a={KEY}"}],
    ids=["path", "parameter of a secret", "parameter"],
)
def test_miss_shows_no_secret_of_the_address(folder: Path, address: dict[str, str]) -> None:
    player = Player(folder, "none")
    with pytest.raises(NoFixture) as caught:
        player.look_up(msgspec.structs.replace(asked(), **address))
    assert "<secret>" in str(caught.value)
    assert KEY not in f"{caught.value} {player.report}"


def test_folder_may_name_what_is_secret(tmp_path: Path) -> None:
    (tmp_path / "replay.toml").write_text('[[redact]]\npattern = "acme-[0-9]{4}"\n')
    player = Player(tmp_path, "new")
    record(player, asked("Order acme-1234?"), "acme-1234 is paid")
    player.close()
    again = Player(tmp_path, "none")
    assert answer(again, asked("Order acme-1234?")) == "<secret> is paid"
    assert not any(b"acme-1234" in path.read_bytes() for path in tmp_path.glob("*.json"))


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────


def test_answers_with_the_recorded_directory_match_again(tmp_path: Path) -> None:
    """A replayed answer names the directory of the recording; the next request repeats it."""

    def turns(cwd: str, answered: str) -> list[ReplayRequest]:
        system = [{"type": "text", "text": f"Working directory: {cwd}\nBe terse."}]
        say = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": answered}]
        later = [*say, {"role": "user", "content": f"{cwd}/a.txt or {answered}?"}]
        return [asked(system=system, messages=say[:1]), asked(system=system, messages=later)]

    recorder = Player(tmp_path, "new")
    for request, text in zip(turns("/home/ada/x", "/home/ada/x/b"), "12", strict=True):
        record(recorder, request, text)
    recorder.close()
    player = Player(tmp_path, "none")
    found = [answer(player, each) for each in turns("/srv/elsewhere", "/home/ada/x/b")]
    assert found == ["1", "2"]


def test_rules_of_a_file(folder: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\npattern = "T-[0-9]+"\nplaceholder = "<ticket>"\n')
    recorder = Player(folder, "new", rules=rules)
    record(recorder, asked("See T-1."), "seen")
    recorder.close()
    assert answer(Player(folder, "none", rules=rules), asked("See T-99.")) == "seen"
    with pytest.raises(NoFixture):
        Player(folder, "none").look_up(asked("See T-99."))


# ── When recording fails ─────────────────────────────────────────────────────────────────────────


def test_full_disk_is_raised_by_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player(tmp_path, "new")
    record(player, asked("Before?"), "kept")
    player.close()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        patch.setattr("os.fsync", full)
        record(player, asked(), "one", "two")
        with pytest.raises(Io, match=r"2 answers were not recorded: POST /v1/messages.*No space"):
            player.close()
    player.close()
    record(player, asked("After?"), "kept, too")
    player.close()
    assert len(player.report.failures) == 2
    again = Player(tmp_path, "none")
    assert answer(again, asked("Before?")) == "kept"
    assert answer(again, asked("After?")) == "kept, too"


def test_unreadable_encoding_is_not_recorded(tmp_path: Path) -> None:
    player = Player(tmp_path, "new")
    recording = player.look_up(asked())
    assert isinstance(recording, Recording)
    recording.add(b"\x00")
    recording.finish(200, (("content-encoding", "zstd"),))
    with pytest.raises(Io, match="1 answer was not recorded"):
        player.close()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [90, 100, 101, 300, 900, 50_000])
def test_deeply_nested_request_is_replayed(tmp_path: Path, depth: int) -> None:
    request = ReplayRequest(method="POST", path="/v1/other", body=nested(depth).encode())
    player = Player(tmp_path, "new")
    record(player, request, "deep")
    player.close()
    assert answer(Player(tmp_path, "none"), request) == "deep"
    with pytest.raises(NoFixture):
        Player(tmp_path, "none").look_up(
            ReplayRequest(method="POST", path="/v1/other", body=nested(299).encode())
        )
