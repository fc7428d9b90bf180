"""llama.cpp's own server with a tiny model, as a child process, and how fast it answers.

    with running(folder) as address: ...

It comes with the package `xllamacpp`; `gguf` writes the model. Both are development requirements.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec

from anaphora import AsyncClient, Response
from anaphora.values import TextDelta

#: The only model of the server.
MODEL = "tiny"
#: It takes 0.1 s; a busy machine may need more.
START_SECONDS = 60

_PREFIX_TOKENS = 12_000
_RULE = "Rule {}: look before you answer, answer in one word, and end it with a full stop. "


class LlamaTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Two conversations with the same beginning: prompt tokens of the second, and the seconds to
    the first token of each."""

    tokens: int
    cached: int
    predicted: int
    cold: float
    warm: float


def missing_package() -> str | None:
    """Why the server cannot run here; None if it can."""
    for name in ("xllamacpp", "gguf"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    return None


async def cold_and_warm(tokens: int = _PREFIX_TOKENS) -> LlamaTiming:
    """Start the server and ask two questions after the same instructions."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as address:
        provider = {"dialect": "llamacpp/openai_chat", "base_url": address, "model": MODEL}
        config = {"providers": {"llama": provider}}
        async with AsyncClient.from_config(config, environ={}) as client:
            # The tiny model has one token for each byte.
            rules = "".join(_RULE.format(index) for index in range(-(-tokens // len(_RULE))))
            cold, _ = await _ask(client, rules, "What is the capital of Italy?")
            warm, last = await _ask(client, rules, "And of Greece?")
    return LlamaTiming(
        tokens=last.usage.input or 0,
        cached=last.usage.read or 0,
        predicted=last.record.predicted or 0,
        cold=cold,
        warm=warm,
    )


async def _ask(client: AsyncClient, rules: str, question: str) -> tuple[float, Response]:
    """Seconds to the first token, and the response."""
    session = client.session("llama", system=rules, max_tokens=20)
    started, first = time.perf_counter(), 0.0
    async for event in session.send(question):
        if not first and isinstance(event, TextDelta):
            first = time.perf_counter() - started
    assert session.last is not None
    return first, session.last


@contextmanager
def running(
    folder: Path, *, slots: int = 1, aside: int = 0, template: str | None = None
) -> Iterator[str]:
    """The server's address, until the block ends or this process does: the child stops with its
    standard input. The model and `llama.log` are written to the folder.

    Each of the `slots` keeps the last prompt it computed, `aside` is the MiB for prompts that were
    evicted, and `template` replaces the model's chat template.
    """
    log = folder / "llama.log"
    program = Path(__file__).with_name("llama_model.py")
    command = [sys.executable, "-P", str(program), str(folder / "tiny.gguf"), "--serve"]
    command += ["--slots", str(slots), "--aside", str(aside)]
    if template is not None:
        (folder / "template.jinja").write_text(template, encoding="utf-8")
        command += ["--template", str(folder / "template.jinja")]
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert child.stdin is not None
    assert child.stdout is not None
    # A child that hangs is killed, which ends its output.
    timer = threading.Timer(START_SECONDS, child.kill)
    timer.start()
    try:
        address = child.stdout.readline().decode().strip()
        timer.cancel()
        if not address:
            raise RuntimeError(f"llama.cpp did not start; its log:\n{tail(log)}")
        yield address
    finally:
        timer.cancel()
        timer.join()
        child.stdin.close()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def tail(log: Path, lines: int = 40) -> str:
    """The end of the log, for error messages."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
