"""How bytes get to a provider and back: two methods, so that one file knows the HTTP library.

    answer = await transport.send(outgoing)     status and headers are there
    body = await answer.read()                  all of it, or
    async for data in answer: ...               as it comes
    await answer.close()                        however it ended

`over_aiohttp` is the one that is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from anaphora.client.config.values import Timeouts


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request with everything that leaves this machine. Its repr shows no header's value."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    timeouts: Timeouts
    largest: int
    """How many bytes of an answer are taken."""

    def __repr__(self) -> str:
        return f"<Outgoing {self.method} {self.url}, {len(self.body)} bytes>"


class Answer(Protocol):
    """An answer whose body may still be on its way."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    async def read(self) -> bytes:
        """All of the body; the connection goes back to the pool."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def close(self) -> None:
        """Lets go of the connection: back to the pool when the body was read to its end, closed
        otherwise. May be called again."""
        ...


class Transport(Protocol):
    """Raises `errors.Transport` for whatever goes wrong on the way."""

    async def send(self, outgoing: Outgoing) -> Answer: ...
    async def close(self) -> None: ...
