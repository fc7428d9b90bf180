"""Beginnings that the provider holds under a handle (Gemini's `cachedContents`): made once, read as
often as one likes, paid for by the hour."""

from __future__ import annotations

import msgspec

from anaphora.catalog import CacheRules
from anaphora.errors import InvalidRequest

from .outcome import Outcome, Span, spans_of
from .prompt import Prompt

_HOUR = 3600.0
#: Dead handles that are remembered, to say when they died.
_REMEMBERED = 1000


class Handle(msgspec.Struct):
    tokens: int
    since: float
    expires: float


class Holding:
    """All handles of one account. What is over is a sum, so that state stays small."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._handles: dict[str, Handle] = {}
        self._dead: dict[str, float] = {}
        self._token_hours = 0.0

    def __len__(self) -> int:
        return len(self._handles) + len(self._dead)

    def create(self, handle: str, tokens: int, at: float, seconds: float) -> Outcome:
        """What is held is paid for once as input."""
        self.purge(at)
        if handle in self._handles:
            raise InvalidRequest(f"there is a handle {handle!r} already", path="handle")
        enough = self._rules.minimum_tokens.value
        if tokens < enough:
            raise InvalidRequest(
                f"{tokens} tokens are too few to be held; the least is {enough}", path="tokens"
            )
        self._dead.pop(handle, None)
        self._handles[handle] = Handle(tokens, at, at + seconds)
        return Outcome(spans_of(Span(0, tokens, "uncached", "new")))

    def extend(self, handle: str, at: float, seconds: float) -> None:
        """It lives for so long from now. Reading it does not do that."""
        self._alive(handle, at).expires = at + seconds

    def delete(self, handle: str, at: float) -> None:
        self._alive(handle, at)
        self._end(handle, at)

    def read(self, prompt: Prompt, at: float) -> Outcome:
        """A call that begins with what a handle holds. One that nobody made here was made
        elsewhere, and is taken to be there."""
        if prompt.handle in self._handles or prompt.handle in self._dead:
            self._alive(prompt.handle, at)
        held, total = prompt.tokens(prompt.held - 1), prompt.total
        return Outcome(
            spans_of(Span(0, held, "read", "held"), Span(held, total, "uncached", "new"))
        )

    def token_hours(self, at: float) -> float:
        """All that was held so far, in tokens times hours: what storage is billed by."""
        alive = sum(_token_hours(handle, at) for handle in self._handles.values())
        return self._token_hours + alive

    def purge(self, at: float) -> None:
        for name in [name for name, handle in self._handles.items() if handle.expires < at]:
            self._end(name, self._handles[name].expires)

    def _alive(self, name: str, at: float) -> Handle:
        self.purge(at)
        handle = self._handles.get(name)
        if handle is None:
            died = self._dead.get(name)
            when = "is unknown" if died is None else f"is gone since {at - died:.0f} s"
            raise InvalidRequest(f"the handle {name!r} {when}", path="handle")
        return handle

    def _end(self, name: str, at: float) -> None:
        self._token_hours += _token_hours(self._handles.pop(name), at)
        self._dead[name] = at
        if len(self._dead) > _REMEMBERED:
            del self._dead[next(iter(self._dead))]


def _token_hours(handle: Handle, at: float) -> float:
    until = min(at, handle.expires)
    return handle.tokens * max(0.0, until - handle.since) / _HOUR
