"""What a simulator remembers (caches, handles, open calls), what bills show of it, and how it is
saved for another process."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import msgspec

from anaphora.cache.lifetime import expiry, is_alive
from anaphora.catalog import CacheRules, LookbackUnit, Moment
from anaphora.errors import InvalidRequest

from .markers import MarkerCache
from .outcome import Outcome, Span, spans_of
from .prefixes import PrefixCache
from .prompt import ScopedKeys
from .slot_predictor import SlotPredictor, TemplateStats
from .slots import SlotCache
from .view import PromptView, SavedCache

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
        self._handles[handle] = StoredHandle(tokens, at, expiry(at, seconds))
        return Outcome(spans_of(Span(0, tokens, "uncached", "new")))

    def extend(self, handle: str, *, at: float, seconds: float) -> None:
        """Lets a handle live for `seconds` from now. Reading does not extend it."""
        self._alive(handle, at).expires = expiry(at, seconds)

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
        ended = [name for name, one in self._handles.items() if not is_alive(one.expires, at)]
        for name in ended:
            self._end(name, self._handles[name].expires)

    def _end(self, name: str, at: float) -> None:
        self._token_hours += self._handles.pop(name).token_hours(at)
        self._ended[name] = at
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]


class SimulatedCaches(HandleSimulator):
    """The caches of one model at one provider."""

    def __init__(
        self, rules: CacheRules, *, lookback_unit: LookbackUnit | None, slots: int, most: int | None
    ) -> None:
        super().__init__(rules)
        self._keys = ScopedKeys(rules)
        self._marked, self._unmarked = _caches(rules, lookback_unit, slots, most)
        """For requests with markers and without. Where a provider has a cache for each (Qwen,
        MiniMax), neither reads what the other wrote; elsewhere they are one."""
        self._template_stats = TemplateStats()

    def __len__(self) -> int:
        entries = sum(map(len, {self._marked, self._unmarked}))
        return entries + len(self._keys) + super().__len__()

    @property
    def lifetime(self) -> float | None:
        """Seconds that a prompt without markers can be read after its last use, which bills may
        show to be other than the rules say; None where the provider has no such cache."""
        return self._unmarked.lifetime if isinstance(self._unmarked, PrefixCache) else None

    @lifetime.setter
    def lifetime(self, seconds: float) -> None:
        if isinstance(self._unmarked, PrefixCache):
            self._unmarked.lifetime = seconds

    def slot_predictor(self) -> SlotPredictor | None:
        """For one conversation on a self-hosted server; None at other providers."""
        slots = isinstance(self._marked, SlotCache)
        return SlotPredictor(self._template_stats) if slots else None

    def billed(self, share: float) -> None:
        """Learns from a bill which share of the last call's input was read: it shows how many slots
        a self-hosted server has. Other caches follow their rules."""
        if isinstance(self._marked, SlotCache):
            self._marked.billed(share)

    def save(self, prompt: PromptView, before: SavedCache, *, scope: Hashable = "") -> SavedCache:
        """What is cached of a prompt that was called, for `restore` in another process. `before` is
        the result for the previous call of the conversation."""
        key_of, saved = self._keys.of(prompt, scope), before
        for cache in dict.fromkeys((self._marked, self._unmarked)):
            saved = cache.save(prompt, key_of, saved)
        return msgspec.structs.replace(saved, template=self._template_stats.save())

    def restore(self, prompt: PromptView, saved: SavedCache, *, scope: Hashable = "") -> None:
        """Adds what another process saved. What is known here stays as it is."""
        key_of = self._keys.of(prompt, scope)
        for cache in dict.fromkeys((self._marked, self._unmarked)):
            cache.restore(prompt, key_of, saved)
        self._keys.remember(prompt, scope)
        self._template_stats.restore(saved.template)


def _caches(
    rules: CacheRules, lookback_unit: LookbackUnit | None, slots: int, most: int | None
) -> tuple[Any, Any]:
    automatic = rules.automatic_breakpoint.value
    takes_markers = rules.mechanism.value != "implicit" and rules.slots.value > 0
    if automatic == "slots":
        cache: Any = SlotCache(slots)
    elif not takes_markers and automatic != "none":
        cache = PrefixCache(rules, most)
    else:
        cache = MarkerCache(rules, lookback_unit, most)
        if rules.mechanism.value == "both" and automatic in ("granules", "units"):
            return cache, PrefixCache(rules, most)
    return cache, cache


class Written(Protocol):
    """Something that a call wrote, and from when it can be read."""

    readable: float


class OpenCall:
    """A call whose response has not ended. Calls that are open at the same time do not read what
    the others write."""

    __slots__ = ("_delay", "_refresh", "_rules", "_written", "outcome")

    def __init__(
        self,
        rules: CacheRules,
        outcome: Outcome,
        written: Sequence[Written] = (),
        refresh: Callable[[float], None] = lambda _: None,
        delay: float = 0.0,
    ) -> None:
        self.outcome = outcome
        self._rules = rules
        self._written = written
        self._refresh = refresh
        self._delay = delay

    @property
    def writes(self) -> bool:
        """Whether it wrote something that cannot be read yet."""
        return any(each.readable == math.inf for each in self._written)

    def respond(self, *, began: float | None = None, ended: float | None = None) -> None:
        """The response began, or ended, at that time."""
        moments: dict[Moment, float | None] = {"response_start": began, "response_end": ended}
        readable = moments.get(self._rules.readable_from.value)
        if readable is not None:
            for each in self._written:
                each.readable = min(each.readable, readable + self._delay)
        lives_from = moments.get(self._rules.ttl_from.value)
        if lives_from is not None:
            self._refresh(lives_from)
