"""llama.cpp's own server with a tiny model, as a child of the tests.

    with running(folder) as llama:
        answer = llama.send(request)

An independent engine with a real prefix cache: requests and replies are not written by the tests. It
deviates from every provider it imitates, so it is no specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from support import llama_server as llama
from support.llama_server import MODEL, START_SECONDS, missing_package

from anaphora.rendered import Request

__all__ = ["MODEL", "Answer", "Llama", "missing_package", "running"]


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lowercase."""
    body: bytes


class Llama:
    """The server, as a client sees it."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self._at = urlsplit(address)
        self.log = log

    def send(self, request: Request) -> Answer:
        return self.post(request.path, request.body.join(), dict(request.headers))

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """The whole answer; a stream, too, is read to its end."""
        connection = HTTPConnection(self._at.hostname or "", self._at.port, timeout=START_SECONDS)
        try:
            connection.request(
                "POST", path, body, {"content-type": "application/json", **(headers or {})}
            )
            response = connection.getresponse()
            headers_read = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers_read, response.read())
        except (OSError, HTTPException) as problem:
            raise RuntimeError(
                f"llama.cpp did not answer ({problem}); its log:\n{llama.tail(self.log)}"
            ) from problem
        finally:
            connection.close()


@contextmanager
def running(folder: Path, **how: Any) -> Iterator[Llama]:
    """The server, until the block ends."""
    with llama.running(folder, **how) as address:
        yield Llama(address, folder / "llama.log")
