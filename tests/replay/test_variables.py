"""Recordings of one directory, day and machine, replayed in another."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from support.tables import each_row

from anaphora.errors import NoFixture
from anaphora.replay import FixtureStore, Player
from anaphora.replay.fixture import Fixture, FixturePiece
from anaphora.replay.integrity import check_folder
from anaphora.replay.keys import ReplayRequest
from anaphora.replay.player import Recording
from anaphora.replay.variables import BoundVariable, date_variables, present_variables, with_values

THERE = {"cwd": "/home/ada/some work", "home": "/home/ada", "tmp": "/tmp", "date": "2026-11-16"}
HERE = {"cwd": "/Users/bob/x", "home": "/Users/bob", "tmp": "/var/folders/T", "date": "2027-01-03"}


#: A prompt of Claude Code.
PROMPT = """# Environment
 - Primary working directory: {cwd}
 - Is a git repository: true
 - Platform: {platform}
 - OS Version: {system}
a file-based memory system at `{home}/.claude/memory/`. Today's date is {date}.
Read {cwd}/main.py."""


def asked(text: str, **more: Any) -> ReplayRequest:
    value = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    data = json.dumps(value | more).encode()
    return ReplayRequest(method="POST", provider="anthropic", path="/v1/messages", body=data)


def record(folder: Path, variables: dict[str, str], *pairs: tuple[ReplayRequest, str]) -> None:
    player = Player(folder, "all", variables=variables)
    for request, text in pairs:
        recording = player.look_up(request)
        assert isinstance(recording, Recording)
        recording.add(text.encode())
        recording.finish(200, (("content-type", "application/json"),))
    player.close()


def answer(player: Player, request: ReplayRequest) -> str:
    fixture = player.look_up(request)
    assert isinstance(fixture, Fixture)
    assert fixture.raw_hash == blake3(fixture.payload).hexdigest()
    return fixture.payload.decode()


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("See {cwd}/a.txt and {home}/.rc.", '"{cwd}/a.txt"'),
        ("Use {tmp}/x.", "{tmp}/x {tmp}"),
        ("It is {date}.", "2026-11-16"),
        ("Hello?", "No path here, not even /home/adam or /home/ada-2."),
    ],
    ids=["working directory", "temporary folder", "a day is compared only", "nothing"],
)
def test_recording_is_found_elsewhere(text: str, reply: str, tmp_path: Path) -> None:
    record(tmp_path, THERE, (asked(text.format(**THERE)), reply.format(**THERE)))
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    player = Player(tmp_path, "none", variables=HERE)
    assert answer(player, asked(text.format(**HERE))) == reply.format(**HERE)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    assert check_folder(tmp_path, deep=True).problems == []


def test_same_request_gets_the_recorded_bytes(tmp_path: Path) -> None:
    """A request that names the old directory means the old directory."""
    request = asked(f"List {THERE['cwd']}.")
    record(tmp_path, THERE, (request, THERE["cwd"]))
    assert answer(Player(tmp_path, "none", variables=HERE), request) == THERE["cwd"]


def test_fixed_text_that_is_a_value_by_accident_matches(tmp_path: Path) -> None:
    text = "Never write to /tmp. Your folder: {cwd}"
    record(tmp_path, THERE, (asked(text.format(**THERE)), "/tmp and {cwd}".format(**THERE)))
    found = answer(Player(tmp_path, "none", variables=HERE), asked(text.format(**HERE)))
    assert found == "/tmp and {cwd}".format(**HERE)


def test_common_word_that_is_the_user_matches(tmp_path: Path) -> None:
    record(tmp_path, {"user": "root"}, (asked("Find the root cause. Owner: root"), "root"))
    player = Player(tmp_path, "none", variables={"user": "runner"})
    assert answer(player, asked("Find the root cause. Owner: runner")) == "root"


def test_longer_path_is_another_one(tmp_path: Path) -> None:
    record(tmp_path, {"cwd": "/work/a"}, (asked("/work/a /work/ab /home/work/a"), "ok"))
    player = Player(tmp_path, "none", variables={"cwd": "/srv/b"})
    with pytest.raises(NoFixture):
        player.look_up(asked("/srv/b /srv/bb /home/srv/b"))
    assert answer(player, asked("/srv/b /work/ab /home/work/a")) == "ok"


def test_conversation_goes_on_with_the_new_directory(tmp_path: Path) -> None:
    def turns(place: dict[str, str]) -> list[ReplayRequest]:
        first = {"role": "user", "content": f"You are in {place['cwd']}."}
        call = {"role": "assistant", "content": f"cat {place['cwd']}/a"}
        result = {"role": "user", "content": f"{place['cwd']}/a: no such file"}
        return [asked("", messages=[first]), asked("", messages=[first, call, result])]

    one, two = turns(THERE)
    record(tmp_path, THERE, (one, f"cat {THERE['cwd']}/a"), (two, "Done."))
    player = Player(tmp_path, "none", variables=HERE)
    found = [answer(player, each) for each in turns(HERE)]
    assert found == [f"cat {HERE['cwd']}/a", "Done."]
    named = [(each.name, each.now) for each in player.report.variables]
    assert named == [("{{cwd}}", HERE["cwd"]), ("{{home}}", HERE["home"])]


def test_recordings_with_keys_of_other_rules_are_found(tmp_path: Path) -> None:
    there = asked(PROMPT.format(**THERE, platform="linux", system="Linux 6.18"))
    here = asked(PROMPT.format(**HERE, platform="darwin", system="Darwin 25"))
    store = FixtureStore.open(tmp_path, create=True)
    old = Fixture(
        key="0" * 64, provider="anthropic", model="m", path="/v1/messages", request=there.body,
        pieces=(FixturePiece(0.1, b"/home/ada/some work/a.py"),), recorded=1e9,
    )  # fmt: skip
    store.add(old)
    assert b'"variables"' not in (tmp_path / store.entries[0].path).read_bytes()
    player = Player(tmp_path, "none", variables={})
    assert answer(player, here) == "/Users/bob/x/a.py"
    with pytest.raises(NoFixture, match="it is recorded 1 time and was sent once more"):
        player.look_up(here)
    last = Player(tmp_path, "none", repeat="last")
    assert [answer(last, here), answer(last, here)] == ["/Users/bob/x/a.py"] * 2
    record(tmp_path, HERE, (here, "again"))  # replaces it
    store = FixtureStore.open(tmp_path)
    assert [store.fixture(each.path).payload for each in store.entries] == [b"again"]


def test_answers_of_two_directories_come_in_their_order(tmp_path: Path) -> None:
    text = "In {cwd}"
    record(tmp_path, THERE, (asked(text.format(**THERE)), "one"), (asked("In  x"), "other"))
    store = FixtureStore.open(tmp_path)
    second = store.fixture(store.entries[0].path)
    pieces = (FixturePiece(0.1, b"two"),)
    store.add(msgspec.structs.replace(second, key="1" * 64, pieces=pieces, raw_hash=""))
    player = Player(tmp_path, "new", variables=HERE)
    request = asked(text.format(**HERE))
    assert [answer(player, request), answer(player, request)] == ["one", "two"]
    assert isinstance(player.look_up(request), Recording)


def test_variables_are_off_without_shipped_rules(tmp_path: Path) -> None:
    folder, rules = tmp_path / "recordings", tmp_path / "none.toml"
    rules.write_text("shipped_rules = false\n")
    record(folder, THERE, (asked(THERE["cwd"]), "ok"))
    with pytest.raises(NoFixture):
        Player(folder, "none", rules=rules, variables=HERE).look_up(asked(HERE["cwd"]))


def test_fixture_keeps_only_the_variables_that_it_names(tmp_path: Path) -> None:
    secret = {**THERE, "home": "/home/sk-ant-api03-canary-9aF3xLq8ZtP2"}
    record(tmp_path, secret, (asked(f"{secret['home']} {secret['cwd']}"), "ok"))
    store = FixtureStore.open(tmp_path)
    assert store.fixture(store.entries[0].path).variables == {"cwd": THERE["cwd"]}


# ── Responses ────────────────────────────────────────────────────────────────────────────────────

OLD, NEW = "/work/a b", '/srv/"é"'
ARGUMENTS = json.dumps({"path": f"{OLD}/x", "text": f"line\n{OLD}"})


def events(*texts: str) -> list[str]:
    deltas = [{"type": "input_json_delta", "partial_json": text} for text in texts]
    made = [{"type": "content_block_delta", "index": 1, "delta": each} for each in deltas]
    return [f"data: {json.dumps(each, ensure_ascii=False)}\n\n" for each in made]


def relocated(*pieces: str, old: str = OLD, new: str = NEW) -> list[str]:
    parts = tuple(FixturePiece(0.1, each.encode()) for each in pieces)
    bound = [BoundVariable(name="{{cwd}}", recorded=old, now=new)]
    made = with_values(Fixture(key="0" * 64, pieces=parts), bound)
    assert len(made.pieces) == len(pieces)
    return [piece.data.decode() for piece in made.pieces]


@pytest.mark.parametrize("cuts", [(), (12,), (14, 17), (3, 13, 15, 16, 40), range(1, 60)])
@pytest.mark.parametrize("new", [NEW, "/work/a b/c", "C:\\Users\\bob", "/x"])
def test_tool_call_gets_the_new_directory(cuts: Any, new: str) -> None:
    """In deltas that share it, and as JSON within JSON."""
    edges = [0, *cuts, len(ARGUMENTS)]
    texts = [ARGUMENTS[one:two] for one, two in itertools.pairwise(edges)]
    found = relocated(*events(*texts), new=new)
    deltas = [json.loads(each.removeprefix("data: "))["delta"]["partial_json"] for each in found]
    assert json.loads("".join(deltas)) == {"path": f"{new}/x", "text": f"line\n{new}"}


@each_row(
    "text, expected",
    [
        ('{"text":"in /work/a b."}', '{"text":"in /srv/\\"é\\"."}'),
        ('{"a":"{\\"b\\":\\"/work/a b\\"}"}',
                              '{"a":"{\\"b\\":\\"/srv/\\\\\\"é\\\\\\"\\"}"}'),
        ('{"text":"\\n/work/a b"}', '{"text":"\\n/srv/\\"é\\""}'),
        ('"file:///work/a%20b/c"', '"file:///srv/%22%C3%A9%22/c"'),
        ("/work/a b\n", '/srv/"é"\n'),
        ('{"a":"\\u00e9\\/", "b" : 1.0}', '{"a":"\\u00e9\\/", "b" : 1.0}'),
        ("/work/a b2 /work/a b-c /work/a b.d", "/work/a b2 /work/a b-c /work/a b.d"),
    ],
)  # fmt: skip
def test_body_gets_the_new_directory(text: str, expected: str) -> None:
    assert relocated(text) == [expected]


# ── This run ─────────────────────────────────────────────────────────────────────────────────────


def test_variables_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    monkeypatch.chdir(link)
    monkeypatch.setenv("PWD", str(link))
    monkeypatch.setenv("HOME", "/")
    found = present_variables()
    assert (found["cwd"], found["pwd"]) == (str(tmp_path / "real"), str(link))
    assert "home" not in found  # in every path


def test_spellings_of_a_day() -> None:
    noon = datetime.datetime(2026, 11, 8, 12, tzinfo=datetime.UTC).timestamp()
    assert {
        "2026-11-08", "2026/11/08", "Sun Nov 08 2026", "November 8, 2026",
        "Sunday, November 8, 2026", "11/8/2026", "November 2026",
    } <= set(date_variables(noon).values())  # fmt: skip
