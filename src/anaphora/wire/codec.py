"""What each wire does: the codec of one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from anaphora.errors import Upstream

if TYPE_CHECKING:
    from anaphora.catalog import Profile
    from anaphora.prompt import Call
    from anaphora.rendered import Plan, Rendered, Request
    from anaphora.values import Event, Reply


class Reader(Protocol):
    """Reads a stream: returns each event as soon as it is complete, and always a last one."""

    def feed(self, data: bytes) -> list[Event]: ...
    def close(self) -> list[Event]: ...


class Writer(Protocol):
    def write(self, event: Event) -> bytes: ...


class Wire(Protocol):
    """The codec of one protocol."""

    @property
    def provider(self) -> str: ...
    def render(
        self, call: Call, profile: Profile, previous: Rendered | None = None
    ) -> Rendered: ...
    def assemble(self, rendered: Rendered, plan: Plan) -> Request: ...
    def parse(self, body: bytes, path: str = "", first: int = 0) -> Call: ...
    def read_reply(self, body: bytes) -> Reply: ...
    def write_reply(self, reply: Reply, created: float | None = None) -> bytes: ...
    def reader(self, path: str = "") -> Reader: ...
    def writer(self) -> Writer: ...
    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: Any = None
    ) -> Upstream: ...
    def write_error(self, error: Upstream) -> tuple[int, dict[str, str], bytes]: ...
