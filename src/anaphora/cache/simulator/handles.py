"""Prefixes stored under a handle (Gemini's `cachedContents`): created once, read any number of
times, billed by the hour."""

from __future__ import annotations

import msgspec

from anaphora.catalog import CacheRules
from anaphora.errors import InvalidRequest

from .outcome import Outcome, Span, spans_of
from .view import PromptView

#: Deleted and expired handles that are remembered, for error messages.
_REMEMBERED = 1000


class StoredHandle(msgspec.Struct):
    tokens: int
    since: float
    expires: float

    def token_hours(self, at: float) -> float:
        until = min(at, self.expires)
        return self.tokens * max(0.0, until - self.since) / 3600.0


class HandleSimulator:
    """All handles of one account. Storage of ended handles is kept as a sum."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self._handles: dict[str, StoredHandle] = {}
        self._ended: dict[str, float] = {}
        self._token_hours = 0.0

    def __len__(self) -> int:
        return len(self._handles) + len(self._ended)

    def hold(self, handle: str, tokens: int, *, at: float, seconds: float) -> Outcome:
        """Creates a handle: its tokens are paid as input once, read by prompts that use the handle,
        and stored by the hour until it ends."""
        self._end_expired(at)
        if handle in self._handles:
            raise InvalidRequest(f"the handle {handle!r} already exists", path="handle")
        minimum = self.rules.minimum_tokens.value
        if tokens < minimum:
            reason = f"{tokens} tokens are too few for a handle; the minimum is {minimum}"
            raise InvalidRequest(reason, path="tokens")
        self._ended.pop(handle, None)
        self._handles[handle] = StoredHandle(tokens, at, at + seconds)
        return Outcome(spans_of(Span(0, tokens, "uncached", "new")))

    def extend(self, handle: str, *, at: float, seconds: float) -> None:
        """Lets a handle live for `seconds` from now. Reading does not extend it."""
        self._alive(handle, at).expires = at + seconds

    def release(self, handle: str, *, at: float) -> None:
        self._alive(handle, at)
        self._end(handle, at)

    def saved_handle(self, handle: str) -> StoredHandle | None:
        """What `restore_handle` needs in another process; None where it has ended."""
        return self._handles.get(handle)

    def restore_handle(self, handle: str, stored: StoredHandle) -> None:
        if handle not in self._ended:
            self._handles.setdefault(handle, stored)

    def token_hours(self, at: float) -> float:
        """Tokens times hours stored so far. Times `rules.storage_price` per million, that is the
        cost of storage."""
        alive = sum(handle.token_hours(at) for handle in self._handles.values())
        return self._token_hours + alive

    def read_handle(self, prompt: PromptView, at: float) -> Outcome:
        """A call that uses a handle. One that was not created here counts as alive."""
        if prompt.handle in self._handles or prompt.handle in self._ended:
            self._alive(prompt.handle, at)
        held, total = prompt.tokens(prompt.held - 1), prompt.total
        return Outcome(
            spans_of(Span(0, held, "read", "held"), Span(held, total, "uncached", "new"))
        )

    def _alive(self, name: str, at: float) -> StoredHandle:
        self._end_expired(at)
        handle = self._handles.get(name)
        if handle is None:
            ended = self._ended.get(name)
            state = "does not exist" if ended is None else f"ended {at - ended:.0f} s ago"
            raise InvalidRequest(f"the handle {name!r} {state}", path="handle")
        return handle

    def _end_expired(self, at: float) -> None:
        for name in [name for name, handle in self._handles.items() if handle.expires < at]:
            self._end(name, self._handles[name].expires)

    def _end(self, name: str, at: float) -> None:
        self._token_hours += self._handles.pop(name).token_hours(at)
        self._ended[name] = at
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
