"""A simulated cache and its handles: what calls read and write by the rules of the catalog."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from blake3 import blake3

from anaphora.bounded import BoundedMap
from anaphora.cache.sent_call import MadeCall, expiry, is_alive, made_call
from anaphora.catalog import CacheRules
from anaphora.catalog.cache_rules import LookbackUnit, Moment
from anaphora.errors import InvalidRequest

from .chances import Chance, find_chances
from .markers import MarkerCache
from .outcome import Outcome, Span, spans_of
from .prefixes import PrefixCache
from .slots import SlotCache
from .view import KeyOf, PromptView, SavedCache, ScopedKeys

#: Deleted and expired handles that are remembered, for error messages.
_REMEMBERED = 1000


class StoredHandle(msgspec.Struct):
    tokens: int
    since: float
    expires: float

    def token_hours(self, at: float) -> float:
        until = min(at, self.expires)
        return self.tokens * max(0.0, until - self.since) / 3600.0


class Written(Protocol):
    """An entry that a call wrote, and the time from which it can be read."""

    readable: float


class OpenCall:
    """A call whose response has not ended. Calls that are open at the same time do not read each
    other's writes."""

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


class Simulator:
    """One model's cache at one provider, for any number of accounts, and one account's handles."""

    def __init__(
        self,
        rules: CacheRules,
        *,
        lookback_unit: LookbackUnit | None = None,
        delay: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
        slots: int = 4,
        most: int | None = None,
    ) -> None:
        """`lookback_unit` selects a published reading of the look-back. `delay` is how long after
        its reply began a prompt becomes readable. `loss` is the share of reads that find nothing,
        drawn from `seed`. `slots` is for self-hosted servers. `most` limits the prefixes that are
        remembered; the least recently used are dropped first."""
        self.rules = rules
        self._keys = ScopedKeys(rules)
        self._marked, self._unmarked = _caches(rules, lookback_unit, slots, most)
        """For requests with markers and without. If a provider has a cache for each (Qwen,
        MiniMax), neither reads what the other wrote; elsewhere they are one."""
        self._delay = delay
        self._loss = loss
        self._seed = seed
        self._calls = 0
        self._handles: dict[str, StoredHandle] = {}
        self._ended = BoundedMap[str, float](_REMEMBERED)
        self._token_hours = 0.0
        """Token hours of handles that have ended."""

    def __len__(self) -> int:
        entries = sum(map(len, {self._marked, self._unmarked}))
        return entries + len(self._keys) + len(self._handles) + len(self._ended)

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    def predict(self, prompt: PromptView, *, at: float, scope: Hashable = "") -> Outcome:
        """What a call at that time would read and write. Changes nothing."""
        if prompt.held:
            return self.read_handle(prompt, at)
        cache, key_of = self._cache_of(prompt), self._keys.of(prompt, scope)
        return self._look_up(cache, prompt, key_of, at, scope)[0]

    def chances(self, prompt: PromptView, *, at: float, scope: Hashable = "") -> tuple[Chance, ...]:
        """The other outcomes that a call at that time may have, and how often: reads that the
        provider misses at random, by the shares that its rules state."""
        if prompt.held:
            return ()
        cache, key_of = self._cache_of(prompt), self._keys.of(prompt, scope)
        return find_chances(self.rules, cache, prompt, key_of, at)

    def start(
        self, prompt: PromptView, *, at: float, reasoning: int | None = None, scope: Hashable = ""
    ) -> OpenCall:
        """A call whose response is still to come: until `OpenCall.respond`, what it writes cannot
        be read."""
        waits = self.rules.readable_from.value != "request_start"
        readable = math.inf if waits else at + self._delay
        made = MadeCall(at, readable, at, at, reasoning)
        outcome, written, refresh = self._make(prompt, made, scope)
        return OpenCall(self.rules, outcome, written, refresh, self._delay)

    def call(
        self,
        prompt: PromptView,
        *,
        at: float,
        began: float | None = None,
        ended: float | None = None,
        reasoning: int | None = None,
        scope: Hashable = "",
    ) -> Outcome:
        """What a call at that time reads and writes; the next call finds what it wrote.

        Writes become readable when the response has begun or ended, as the rules say: `began` and
        `ended`, or right after `at` if neither is known. So calls that start together all write.
        `reasoning` are the tokens of hidden reasoning in the reply, which some providers do not
        cache. `scope` separates accounts, workspaces or servers.
        """
        made = made_call(
            self.rules, at, began=began, ended=ended, reasoning=reasoning, delay=self._delay
        )
        return self._make(prompt, made, scope)[0]

    def _make(
        self, prompt: PromptView, made: MadeCall, scope: Hashable
    ) -> tuple[Outcome, Sequence[Written], Callable[[float], None]]:
        """The outcome, the written entry, and the function that restarts its lifetime."""
        self._calls += 1
        if prompt.held:
            return self.read_handle(prompt, made.at), (), _restart_nothing
        cache, key_of = self._cache_of(prompt), self._keys.of(prompt, scope)
        outcome, lookup = self._look_up(cache, prompt, key_of, made.at, scope)
        if self._loss and outcome.read and self._draw() < self._loss:
            outcome, lookup = cache.lose(prompt, lookup)
        written = cache.commit(prompt, key_of, lookup, made)
        self._keys.remember(prompt, scope)
        return outcome, written, partial(cache.refresh, prompt, key_of, lookup)

    def _cache_of(self, prompt: PromptView) -> Any:
        return self._marked if prompt.markers or prompt.automatic else self._unmarked

    def _look_up(
        self, cache: Any, prompt: PromptView, key_of: KeyOf, at: float, scope: Hashable
    ) -> tuple[Outcome, Any]:
        """The outcome; if a changed parameter made old tokens new, it is named."""
        outcome, lookup = cache.predict(prompt, key_of, at)
        for span in outcome.spans:
            # If messages are read, no parameter has invalidated them.
            if span.reason == "new" and outcome.read <= prompt.tokens(prompt.leading):
                changed = self._keys.changed(prompt, scope)
                return _explained(outcome, changed) if changed else outcome, lookup
        return outcome, lookup

    def _draw(self) -> float:
        """A number between 0 and 1, from the seed and the number of the call."""
        drawn = blake3(f"{self._seed} {self._calls}".encode()).digest(8)
        return int.from_bytes(drawn) / 2**64

    # ── What bills show, and what is saved ───────────────────────────────────────────────────────

    @property
    def lifetime(self) -> float | None:
        """Seconds that a prompt without markers can be read after its last use; bills may show
        another value than the rules. None if the provider has no such cache."""
        return self._unmarked.lifetime if isinstance(self._unmarked, PrefixCache) else None

    @lifetime.setter
    def lifetime(self, seconds: float) -> None:
        if isinstance(self._unmarked, PrefixCache):
            self._unmarked.lifetime = seconds

    def billed(self, share: float) -> None:
        """Learn from the share of the last call's input that was read how many slots a self-hosted
        server has. Other caches follow their rules."""
        if isinstance(self._marked, SlotCache):
            self._marked.billed(share)

    def save(self, prompt: PromptView, before: SavedCache, *, scope: Hashable = "") -> SavedCache:
        """The cached state of a prompt that was sent, for `restore` in another process. `before` is
        the result for the previous call of the conversation."""
        key_of, saved = self._keys.of(prompt, scope), before
        for cache in dict.fromkeys((self._marked, self._unmarked)):
            saved = cache.save(prompt, key_of, saved)
        return saved

    def restore(self, prompt: PromptView, saved: SavedCache, *, scope: Hashable = "") -> None:
        """Add the state that another process saved. Entries known here are not changed."""
        key_of = self._keys.of(prompt, scope)
        for cache in dict.fromkeys((self._marked, self._unmarked)):
            cache.restore(prompt, key_of, saved)
        self._keys.remember(prompt, scope)

    # ── Handles ──────────────────────────────────────────────────────────────────────────────────

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
        """Set a handle's end to `seconds` from now. Reading does not extend it."""
        self._alive(handle, at).expires = expiry(at, seconds)

    def release(self, handle: str, *, at: float) -> None:
        self._alive(handle, at)
        self._end(handle, at)

    def saved_handle(self, handle: str) -> StoredHandle | None:
        """The state for `restore_handle` in another process; None if the handle has ended."""
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


def _caches(
    rules: CacheRules, lookback_unit: LookbackUnit | None, slots: int, most: int | None
) -> tuple[Any, Any]:
    """For requests with markers, and for those without: often the same."""
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


def _restart_nothing(_: float) -> None:
    """A handle lives until its own end."""


def _explained(outcome: Outcome, changed: str) -> Outcome:
    """The outcome with new tokens attributed to changed parameters."""
    spans = (
        Span(span.start, span.end, span.fate, "param_changed", span.ttl, changed)
        if span.reason == "new"
        else span
        for span in outcome.spans
    )
    return Outcome(tuple(spans))
