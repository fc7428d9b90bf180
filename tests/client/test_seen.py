"""`remember=True`: the first call of a process is marked if its beginning comes back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.waiting import PATIENCE

import anaphora
from anaphora.cache.plan import SeenBeginning
from anaphora.client import seen
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidConfig, InvalidRequest

MODEL = "claude-sonnet-4-5"
CANARY = "the walrus hides 4711 oysters"
SYSTEM = f"Answer in short sentences; {CANARY}. " + "Look before you leap, and say it. " * 400
DOCUMENT = f"A report: {CANARY}. " + "The quick brown fox jumps over the lazy dog. " * 400
KEY = "sk-ant-canary-4711"
PROGRAM = """
import sys, anaphora
from pathlib import Path
system = Path(sys.argv[1]).read_text()
anaphora.complete("claude-sonnet-4-5", sys.argv[2], system=system, remember=sys.argv[3] == "yes" or None)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ANAPHORA_REMEMBER")
    return tmp_path / "anaphora" / "seen.sqlite"


def process(emu: Emulator, **options: Any) -> anaphora.Client:
    """A client that knows as little as one of a new process."""
    environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": emu.url}
    return anaphora.Client.from_env(environ, **options)


def billed(emu: Emulator) -> list[str]:
    """What each call did, the first one first."""
    calls = [each for each in reversed(emu.requests()) if "read" in each]
    return ["read" if each["read"] else "written" if each["written"] else "-" for each in calls]


def asked(emu: Emulator, content: Any, **options: Any) -> anaphora.Response:
    options.setdefault("remember", True)
    with process(emu) as client:
        return client.complete(content, model=MODEL, **options)


def content(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.parent.iterdir())


def test_processes_know_what_earlier_ones_sent(emu: Emulator, cache: Path, tmp_path: Path) -> None:
    system = tmp_path / "system.txt"
    system.write_text(SYSTEM)
    environ = os.environ | {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": emu.url}
    for number, (remember, variable) in enumerate((("yes", ""), ("no", "1"), ("yes", "0"))):
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(system), f"Question {number}?", remember],
            env=environ | {"ANAPHORA_REMEMBER": variable},
            timeout=PATIENCE,
            check=True,
        )
    assert billed(emu) == ["-", "written", "read"]
    for secret in (CANARY, KEY, "Look before", "Question", MODEL, "127.0.0.1"):
        assert secret.encode() not in content(cache)


def test_without_it_no_file_is_made_and_nothing_is_marked(emu: Emulator, cache: Path) -> None:
    for _ in range(3):
        asked(emu, "Hello?", system=SYSTEM, remember=None)
    assert billed(emu) == ["-", "-", "-"]
    assert not cache.exists()


def test_the_client_the_call_and_the_variable(
    emu: Emulator, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(emu, remember=True) as client:
        client.complete("Hello?", model=MODEL, system=SYSTEM, remember=False)
    assert not cache.exists()
    monkeypatch.setenv("ANAPHORA_REMEMBER", "1")
    with process(emu, remember=False) as client:
        client.complete("Hello?", model=MODEL, system=SYSTEM)
    assert not cache.exists()
    with process(emu) as client:
        client.complete("Hello?", model=MODEL, system=SYSTEM)
    assert cache.exists()
    monkeypatch.setenv("ANAPHORA_REMEMBER", "maybe")
    with process(emu) as client, pytest.raises(InvalidConfig, match="must be 1 or 0, got 'maybe'"):
        client.complete("Hello?", model=MODEL)
    wrong: Any = "yes"
    with pytest.raises(InvalidRequest, match="remember: must be True or False"):
        asked(emu, "Hello?", remember=wrong)


def test_a_conversation_goes_on_in_another_process(emu: Emulator) -> None:
    history: list[Any] = [anaphora.Message.user(DOCUMENT)]
    for _ in range(3):
        response = asked(emu, history)
        history += [response.reply.message, anaphora.Message.user("And then?")]
    assert billed(emu) == ["-", "written", "read"]


def test_a_document_before_the_question_comes_back(emu: Emulator) -> None:
    for question in ("What?", "Where?", "When?"):
        response = asked(emu, [anaphora.Text(DOCUMENT), anaphora.Text(question)])
    assert billed(emu) == ["-", "written", "read"]
    assert not response.usage.written_total  # the question does not come back


def test_a_session_reads_what_another_process_wrote(emu: Emulator) -> None:
    usages = []
    for question in ("What?", "Where?", "When?"):
        with process(emu, remember=True) as client:
            chat = client.session(model=MODEL)
            parts = [anaphora.Text(DOCUMENT), anaphora.Text(question)]
            usages.append(chat.send(parts).result().usage)
    # The first one is marked as conversations are: behind its question, which no other has.
    assert [bool(usage.written_total) for usage in usages] == [True, True, False]
    assert billed(emu) == ["written", "written", "read"]


def test_a_preview_looks_and_does_not_write(emu: Emulator, cache: Path) -> None:
    parts = [anaphora.Text(DOCUMENT), anaphora.Text("What?")]

    def previewed(**options: Any) -> tuple[str, ...]:
        with process(emu, **options) as client:
            return client.session(model=MODEL).preview(parts).markers

    unknown = previewed(remember=True)
    assert not cache.exists()
    asked(emu, [anaphora.Text(DOCUMENT), anaphora.Text("Where?")])
    before = cache.read_bytes()
    assert previewed(remember=True) == ("messages[0].content[0] 5m",)
    assert previewed() == unknown != previewed(remember=True)
    assert cache.read_bytes() == before


def test_a_tool_loop_of_each_process_marks_its_end_again(emu: Emulator) -> None:
    """What comes back is not only the beginning: sessions of several calls stay marked."""

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    for question in ("In Rome?", "In Oslo?"):
        with process(emu, remember=True) as client:
            chat = client.session(model=MODEL, system=SYSTEM, tools=[weather])
            first = chat.run(f"What is the weather? {question}").result().responses[0]
    assert first.usage.read
    assert first.usage.written_total


@pytest.mark.parametrize("many", [False, True])
def test_map_of_each_process(emu: Emulator, many: bool) -> None:
    for number in range(1 if many else 3):
        with process(emu, remember=True) as client:
            prompts = [f"{number}, {each}?" for each in range(2 if many else 1)]
            result = client.map(prompts, model=MODEL, system=SYSTEM).result()
            assert result.progress.done == len(prompts)
    assert billed(emu)[-1] == "read"


def test_an_old_beginning_is_not_expected_back(
    emu: Emulator, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call a day: each would pay for a marker that no other reads."""
    clock = time.time
    for day in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(
                "anaphora.client.oneshot.time.time", lambda day=day: clock() + day * 86400
            )
            asked(emu, "Hello?", system=SYSTEM)
    assert billed(emu) == ["-", "-", "-"]


def test_calls_every_half_hour_get_the_longer_ttl(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    for number in range(3):
        with monkeypatch.context() as patch:
            later = number * 1800
            patch.setattr("anaphora.client.oneshot.time.time", lambda later=later: clock() + later)
            usage = asked(emu, "Hello?", system=SYSTEM).usage
    assert usage.read or "1h" in (usage.written or {})


def damage(path: Path) -> None:
    path.write_bytes(b"\xff" * 20_000)


def stand_in_the_way(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file")


@pytest.mark.parametrize("break_it", [damage, stand_in_the_way])
def test_calls_go_on_without_the_file(
    emu: Emulator, cache: Path, break_it: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(emu, "One?", system=SYSTEM)
    seen._indexes[cache]._finish()
    seen._indexes.clear()
    break_it(cache)
    for _ in range(2):
        assert asked(emu, "Two?", system=SYSTEM).text
    assert billed(emu) == ["-", "-", "-"]
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    assert asked(emu, "Three?", system=SYSTEM).text


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_failing_index_is_a_notice_and_no_error(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(seen.SeenIndex, "record", fail)
    response = asked(emu, "Hello?", system=SYSTEM)
    assert response.text
    assert [notice.code for notice in response.notices] == ["remember_failed"]


def test_a_short_prompt_is_not_looked_up(emu: Emulator, cache: Path) -> None:
    asked(emu, "Hello?")
    assert not cache.exists()


def test_other_providers_have_no_use_for_it(emu: Emulator, cache: Path) -> None:
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{emu.url}/v1"}
    with anaphora.Client.from_env(environ, remember=True) as client:
        assert client.complete(DOCUMENT, model="gpt-5.2").text
    assert not cache.exists()


def test_it_takes_part_in_async_code(emu: Emulator) -> None:
    environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": emu.url}

    async def main() -> None:
        async with anaphora.AsyncClient.from_env(environ, remember=True) as client:
            await client.complete("Hello?", model=MODEL, system=SYSTEM)

    for _ in range(3):
        asyncio.run(main())
    assert billed(emu) == ["-", "written", "read"]


def test_counts_of_a_beginning_become_pauses() -> None:
    gaps = SeenBeginning(last=100.0, started=3, continued=900, pauses=(10.0, 20.0)).gaps()
    assert (gaps.count, gaps.last, [*gaps.lengths]) == (64, 100.0, [10.0, 20.0])
