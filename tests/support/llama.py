"""llama.cpp's own server with a tiny model, as a child of the tests.

    with running(folder) as llama:
        answer = llama.send(request)

An engine nobody here wrote, with a real prefix cache: what it takes, and what it answers, was not
made up by whoever wrote the test. It deviates from every provider it imitates, so it specifies
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from anaphora.rendered import Request

MODEL = "tiny"
_TESTS = Path(__file__).parents[1]
#: It takes a tenth of a second; a machine that is busy may need more.
_START_SECONDS = 60


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lowercase."""
    body: bytes


class Llama:
    """The server, as a client sees it."""

    def __init__(self, address: str, log: Path) -> None:
        self._at = urlsplit(address)
        self.log = log

    def send(self, request: Request) -> Answer:
        return self.post(request.path, request.body.join(), dict(request.headers))

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """The whole answer; a stream, too, is read to its end."""
        connection = HTTPConnection(self._at.hostname or "", self._at.port, timeout=_START_SECONDS)
        try:
            connection.request(
                "POST", path, body, {"content-type": "application/json", **(headers or {})}
            )
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, response.read())
        except (OSError, HTTPException) as problem:
            raise RuntimeError(
                f"llama.cpp did not answer ({problem}); its log:\n{self.tail()}"
            ) from problem
        finally:
            connection.close()

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for error messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def why_not() -> str | None:
    """Why it cannot run here; None where it can."""
    for name in ("xllamacpp", "gguf"):
        if find_spec(name) is None:
            return f"{name} is not installed: there is no wheel of it for this platform"
    return None


@contextmanager
def running(folder: Path) -> Iterator[Llama]:
    """The server, until the block ends. It ends with this process, too, whatever happens to it:
    its standard input does."""
    log = folder / "llama.log"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "support.llama_child", str(folder / "tiny.gguf")],
            cwd=_TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert child.stdin is not None
    assert child.stdout is not None
    # A child that hangs instead of starting is ended, and then its output ends as well.
    patience = threading.Timer(_START_SECONDS, child.kill)
    patience.start()
    try:
        address = child.stdout.readline().decode().strip()
        patience.cancel()
        llama = Llama(address, log)
        if not address:
            raise RuntimeError(f"llama.cpp did not start; its log:\n{llama.tail()}")
        yield llama
    finally:
        patience.cancel()
        patience.join()
        child.stdin.close()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
