"""Wires: how a provider's protocol says a call and reads an answer, in both directions.

Every wire is a package with the same ten names; `wire.get("anthropic")` finds one.

    render(call, profile, previous=None) -> Rendered     parse(body) -> Call
    assemble(rendered, plan) -> Request                  split(body) -> Rendered
    read_reply(body) -> Reply                            write_reply(reply) -> bytes
    reader() -> bytes in, events out                     writer() -> events in, bytes out
    read_error(status, headers, body) -> Upstream        write_error(error) -> status, headers, body

`parse` and `split` also take the path that a request was sent to, for what only it says: the model,
where the body does not name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from anaphora.errors import InvalidRequest, Upstream

if TYPE_CHECKING:
    from anaphora.catalog import Profile
    from anaphora.prompt import Call
    from anaphora.rendered import Plan, Rendered, Request
    from anaphora.values import Event, Reply

#: The wires there are, by name; the value is what their providers call them.
WIRES: dict[str, str] = {
    "anthropic": "Anthropic Messages",
    "openai_chat": "OpenAI Chat Completions",
    "openai_responses": "OpenAI Responses",
    "ollama": "Ollama",
}

#: Whose models speak it, unless someone says otherwise.
PROVIDERS: dict[str, str] = {
    "anthropic": "anthropic",
    "openai_chat": "openai",
    "openai_responses": "openai",
    "ollama": "ollama",
}


class Reader(Protocol):
    """Reads a stream: every event is given as soon as it is complete, and the last one always
    comes."""

    def feed(self, data: bytes) -> list[Event]: ...
    def close(self) -> list[Event]: ...


class Writer(Protocol):
    def write(self, event: Event) -> bytes: ...


class Wire(Protocol):
    """One protocol, both ways."""

    def render(
        self, call: Call, profile: Profile, previous: Rendered | None = None
    ) -> Rendered: ...
    def assemble(self, rendered: Rendered, plan: Plan) -> Request: ...
    def parse(self, body: bytes, path: str = "") -> Call: ...
    def split(
        self, body: bytes, headers: tuple[tuple[str, str], ...] = (), path: str = ""
    ) -> Rendered: ...
    def read_reply(self, body: bytes) -> Reply: ...
    def write_reply(self, reply: Reply) -> bytes: ...
    def reader(self) -> Reader: ...
    def writer(self) -> Writer: ...
    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: Any = None
    ) -> Upstream: ...
    def write_error(self, error: Upstream) -> tuple[int, dict[str, str], bytes]: ...


def get(name: str) -> Wire:
    """The wire of that name, loaded when it is first asked for."""
    if name not in WIRES:
        raise InvalidRequest(f"no wire {name!r}; there are {', '.join(WIRES)}", path="wire")
    return cast(Wire, import_module(f"anaphora.wire.{name}"))
