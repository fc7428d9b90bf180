"""One contestant at one provider: its process, an emulator, and what the emulator billed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from _served import free_port

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.replies import GeneratedReply
from anaphora.emulator.replies.script import (
    Script,
    ScriptInput,
    ScriptPlayer,
    ScriptReply,
    ScriptRule,
    ScriptToolCall,
)

from .bills import Bill
from .clients import virtual_clock
from .workload import START, BenchCall, Family

CLIENTS = Path(__file__).parent / "clients"
Json = dict[str, Any]


class Cell(NamedTuple):
    """What a process of its own measures."""

    peer: str
    module: str
    """The file of its calls, in clients/."""
    command: tuple[str, ...]
    """The interpreter."""
    environ: dict[str, str]
    provider: str
    model: str
    fixed: bool
    """Through `anaphora watch --fix`."""


class ReplyPlayer(ScriptPlayer):
    def __init__(self) -> None:
        super().__init__(Script())
        self.reply = ScriptReply(text="-")

    def next(self, request: ScriptInput) -> GeneratedReply | None:
        return self.reply.generate(request)


class RecordedReplies(Script, frozen=True):
    """Answers every request with the reply that was put there."""

    answers: ReplyPlayer = msgspec.field(default_factory=ReplyPlayer)

    def player(self) -> ScriptPlayer:
        return self.answers


def scripted(reply: Json) -> ScriptReply:
    calls = tuple(
        ScriptToolCall(name=call["name"], arguments=call["arguments"], id=call["id"])
        for call in reply["calls"]
    )
    text = reply["text"] or (None if calls else "-")
    return ScriptReply(text=text, tool_calls=calls, stop="tool_calls" if calls else "end")


class Worker:
    """The process of a contestant, which answers a line with a line."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def ask(self, request: Json | None = None) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if request is not None:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended: {self._log.read_text()[-2000:]}")
        answer: Json = json.loads(line)
        return answer


@contextlib.contextmanager
def worker(cell: Cell, url: str, folder: Path) -> Iterator[Worker]:
    program = CLIENTS / ("ai_sdk.mjs" if cell.module == "ai_sdk" else "harness.py")
    words = [] if cell.module == "ai_sdk" else [cell.module]
    log = folder / "stderr"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*cell.command, str(program), *words, cell.provider, cell.model, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environ(cell, folder),
        )
        try:
            found = Worker(process, log)
            found.ask()  # it is ready
            yield found
        finally:
            process.kill()
            process.communicate()


def _environ(cell: Cell, folder: Path) -> dict[str, str]:
    """Nothing of the user's: no keys, no settings, no proxies."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CACHEBENCH_CLOCK": str(folder / "clock"),
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "k",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **cell.environ,
    }


def measure(cell: Cell, families: list[Family]) -> list[Bill]:
    """The bill of each family, in their order."""
    replies = RecordedReplies(rules=(ScriptRule(reply=ScriptReply(text="-")),))
    options = EmulatorOptions(latency=Latency(first=0.0), script=replies)
    with (
        tempfile.TemporaryDirectory() as name,
        emulator.running(options) as emu,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        virtual_clock.create(folder / "clock")
        watch = stack.enter_context(_watching(cell, emu.url, folder)) if cell.fixed else None
        asked, bills = stack.enter_context(worker(cell, emu.url, folder)), list[Bill]()
        for family in families:
            emu.reset()
            virtual_clock.set_offset(folder / "clock", START - time.time())
            url = watch.restarted(cell.provider) if watch else emu.url
            asked.ask({"begin": url})
            bills.append(_play(family, emu, replies.answers, asked, folder))
        return bills


class Watch:
    """`anaphora watch --fix` in front of the emulator, a new one for each family."""

    def __init__(self, process: subprocess.Popen[str], port: int, folder: Path) -> None:
        self._process, self._port, self._folder = process, port, folder
        self._started = 0

    def restarted(self, provider: str) -> str:
        """The address of a proxy that has seen nothing."""
        assert self._process.stdin is not None
        self._started += 1
        home = self._folder / f"watch{self._started}"
        home.mkdir()
        self._process.stdin.write(f"{home}\n")
        self._process.stdin.flush()
        aws = _printed(home / "watch", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME")
        # That address has a secret, since the proxy signs what comes there.
        return aws if provider == "bedrock" else f"http://127.0.0.1:{self._port}"


@contextlib.contextmanager
def _watching(cell: Cell, url: str, folder: Path) -> Iterator[Watch]:
    port = free_port()
    command = [sys.executable, str(CLIENTS / "watching.py"), str(folder / "clock"), str(port), url]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, text=True, env=_environ(cell, folder)
    )
    try:
        yield Watch(process, port, folder)
    finally:
        process.communicate()  # it ends with its input


def _printed(file: Path, wanted: str) -> str:
    """The variable that the proxy prints when it listens."""
    until, text = time.monotonic() + 60, ""
    while time.monotonic() < until:
        text = file.read_text() if file.exists() else ""
        for line in text.splitlines(keepends=True):
            name, _, address = line.removeprefix("export ").partition("=")
            if name == wanted and address.endswith("\n"):
                return address.strip()
        time.sleep(0.01)
    raise RuntimeError(f"the proxy printed no {wanted}: {text[-1000:]}")


def _play(
    family: Family, emu: emulator.Emulator, answers: ReplyPlayer, asked: Worker, folder: Path
) -> Bill:
    bill = Bill(family.name)
    for call in family.calls:
        answers.reply = scripted(call.reply)
        now = time.time()
        offset = START + call.at - now
        virtual_clock.set_offset(folder / "clock", offset)
        emu.engine.set_offset(offset, now)
        answer = asked.ask(_request(call))
        bill.add_answer(answer)
    singles = [call.single for call in family.calls]
    bill.add_entries(emu.requests()[::-1], emu.engine.journal.sent, singles)
    return bill


def _request(call: BenchCall) -> Json:
    found: Json = msgspec.to_builtins(call)
    return found
