"""Print what one warm call runs through: a turn of a session, a call of the daemon, a watched call.

    python scripts/trace_calls.py

Each is streamed, with a tool, on the Anthropic wire, and the third call of its conversation. The
emulator that answers runs in a process of its own, so that only the client's, the daemon's or the
proxy's functions are counted. What a server does at the same time without a call, such as probes
of its store, is subtracted. The last line is a JSON object: by kind of call the functions, each
as [file, line, name, times]; a coroutine counts each time that it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import anaphora

#: A function by file, line and name, and how often it was called.
Called: TypeAlias = tuple[str, int, str, int]

PACKAGE = str(Path(anaphora.__file__).parent)
MODEL = "claude-sonnet-5-5"
SYSTEM = "You are terse. " * 600
QUESTIONS = ("What is the weather in Rome?", "And in Oslo?", "And in Cairo?")
TOOL = {
    "name": "look",
    "description": "Look up the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
#: What a daemon does every few seconds for all calls so far, or without any: no part of a call.
_UPKEEP = "run_maintenance"
_UPKEEP_THREADS = frozenset({"anaphora dashboard"})
#: Seconds for a call and what it leaves to do behind its answer, and then without a call.
_WINDOW = 2.0


def _is_upkeep(frame: FrameType | None) -> bool:
    if threading.current_thread().name in _UPKEEP_THREADS:
        return True
    while frame is not None:
        if frame.f_code.co_name == _UPKEEP:
            return True
        frame = frame.f_back
    return False


class Trace:
    """The functions of ours that run while it is on, in this thread and all that start later."""

    def __init__(self) -> None:
        self.state = "off"
        """`on`: with a call; `idle`: without one."""
        self._seen = {state: Counter[tuple[str, int, str]]() for state in ("on", "idle")}
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self.state != "off" and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE) and not _is_upkeep(frame):
                place = code.co_filename, code.co_firstlineno, code.co_name
                self._seen[self.state][place] += 1

    @property
    def calls(self) -> list[Called]:
        seen = self._seen["on"] - self._seen["idle"]
        return [(*place, count) for place, count in sorted(seen.items())]


# ── The three kinds of call ──────────────────────────────────────────────────────────────────────


async def session_turn(url: str) -> list[Called]:
    tools = anaphora.ToolRegistry()

    @tools.tool
    def look(city: str) -> str:
        """Look up the weather of a city."""
        return f"{city}: sunny"

    claude = {"wire": "anthropic", "model": MODEL, "key": {"env": "KEY"}, "base_url": url}
    trace = Trace()
    async with anaphora.AsyncClient.from_config(
        {"providers": {"claude": claude}}, environ={"KEY": "any"}
    ) as client:
        chat = client.session("claude", system=SYSTEM, tools=tools)
        for question in QUESTIONS[:2]:
            async for _ in chat.run(question):
                pass
        trace.state = "on"
        async for _ in chat.send(QUESTIONS[2]):
            pass
        trace.state = "off"
    return trace.calls


def daemon_call(url: str) -> list[Called]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        claude = {"wire": "anthropic", "model": MODEL, "base_url": url, "key": {"secret": "KEY"}}
        llm = {"providers": {"claude": claude}, "daemon": {"port": 0}}
        (home / "llm.yaml").write_text(json.dumps(llm))
        grant = {"providers": ["claude"], "models": ["*"], "max_tokens": 4096, "usd_per_day": 5}
        grants = {"capabilities_grant": ["llm_complete", "llm_stream"]}
        extensions = {"demo": grants | {"llm": grant | {"tools": ["*"]}}}
        (home / "extensions.yaml").write_text(json.dumps(extensions))
        _anaphora("init", str(home))
        _anaphora("secrets", "set", "KEY", "--home", str(home), given="sk-traced\n")
        token = _anaphora("apps", "add", "demo", "--home", str(home)).split()[-1]
        return _served(
            ["serve", "--home", str(home)],
            r"^anaphora: .*?(http://[\d.]+:\d+)",
            {"x-api-key": token},
        )


def watched_call(url: str) -> list[Called]:
    command = ["watch", "--upstream", f"anthropic={url}"]
    return _served(command, r"ANTHROPIC_BASE_URL=(\S+)", {"x-api-key": "sk-traced"})


# ── A server under trace ─────────────────────────────────────────────────────────────────────────


def _served(command: list[str], address: str, headers: dict[str, str]) -> list[Called]:
    """The functions that the third call runs in a server, which is this file with a command."""
    with _server([sys.executable, __file__, *command], address) as (process, url):
        assert process.stdin is not None
        assert process.stdout is not None
        _ask(url, headers, 1)
        _ask(url, headers, 2)
        time.sleep(_WINDOW)
        for state in ("on", "idle", "off"):
            process.stdin.write(f"{state}\n")
            process.stdin.flush()
            if state == "on":
                time.sleep(_WINDOW / 10)
                began = time.monotonic()
                _ask(url, headers, 3)
                time.sleep(max(0.0, 0.9 * _WINDOW - (time.monotonic() - began)))
            elif state == "idle":
                time.sleep(_WINDOW)
        for line in process.stdout:
            if line.startswith("traced: "):
                found: list[Called] = json.loads(line.removeprefix("traced: "))
                return found
    raise SystemExit("the server ended before it was traced")


def _ask(url: str, headers: dict[str, str], turns: int) -> None:
    messages = []
    for question in QUESTIONS[:turns]:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": "Sunny."})
    body = {
        "model": MODEL,
        "max_tokens": 100,
        "stream": True,
        "system": SYSTEM,
        "tools": [TOOL],
        "messages": messages[:-1],
    }
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    headers = headers | {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    connection.request("POST", f"{parts.path}/v1/messages", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200 or b"message_stop" not in text:
        raise SystemExit(f"the call was not answered: {answer.status} {text[:500]!r}")
    connection.close()


@contextlib.contextmanager
def _server(command: list[str], address: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if match := re.search(address, line):
                yield process, match[1]
                break
        else:
            raise SystemExit(f"{' '.join(command)} did not start")
    finally:
        process.terminate()
        process.communicate()


def _anaphora(*words: str, given: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "anaphora", *words],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"anaphora {' '.join(words)}: {done.stderr}")
    return done.stdout


def _run_command() -> None:
    """Runs a command under trace; `on`, `idle` and `off` on standard input switch it."""

    def control() -> None:
        for line in sys.stdin:
            trace.state = line.strip()
            if trace.state == "off":
                print(f"traced: {json.dumps(trace.calls)}", flush=True)

    control_thread = threading.Thread(target=control, daemon=True)
    trace = Trace()
    control_thread.start()
    from anaphora.cli.main import main as anaphora_main

    anaphora_main()


def main() -> None:
    if len(sys.argv) > 1:
        _run_command()
        return
    kinds: dict[str, Callable[[str], list[Called]]] = {
        "session_turn": lambda url: asyncio.run(session_turn(url)),
        "daemon_call": daemon_call,
        "watched_call": watched_call,
    }
    command = [sys.executable, "-m", "anaphora", "emulate", "--port", "0"]
    with _server(command, r"(http://[\d.]+:\d+)") as (_, url):
        found = {}
        for kind, run in kinds.items():
            print(f"tracing {kind}", file=sys.stderr)
            found[kind] = run(url)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
