"""A request as a cache sees it: blocks in hash order, what stands before each, and the markers.

A block's key is the identity of the whole prefix that it ends: two prompts with the same key agree
on everything up to there. Keys and token counts are asked for one by one, so that a call costs what
is looked at, not what was ever said.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from blake3 import blake3

from anaphora.rendered import ChunkRun, Kind, Mark, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Section, Ttl

Key: TypeAlias = Hashable

_Placed: TypeAlias = tuple[ChunkRun, int]
"""A run, and its first block."""

_SPOKEN = (Kind.TOOL_CALL, Kind.THINKING)


class Prompt(ABC):
    """What a simulator asks of a request. Positions count blocks from 0."""

    markers: tuple[Mark, ...] = ()
    """In hash order."""
    automatic: Ttl | None = None
    """The provider places one more by itself."""
    held: int = 0
    """How many leading blocks live under a handle at the provider,"""
    handle: str = ""
    """and the handle."""
    cache_params: Mapping[str, bytes] = {}
    """The parameters that affect the cache, by the names of the rules."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def key(self, position: int) -> Key:
        """The identity of the prefix that ends with this block."""

    @abstractmethod
    def tokens(self, position: int) -> int:
        """The tokens of the prefix that ends with this block; 0 for position -1."""

    @abstractmethod
    def kind(self, position: int) -> Kind: ...

    @abstractmethod
    def section(self, position: int) -> Section: ...

    @abstractmethod
    def spoken(self, position: int) -> bool:
        """Whether the model said it."""

    @abstractmethod
    def may_mark(self, position: int) -> bool: ...

    @abstractmethod
    def turn_ends(self) -> Iterator[int]:
        """Where a user's message ends, or the last of a run of tool results; the latest first."""

    @property
    @abstractmethod
    def leading(self) -> int:
        """The last block before the messages; -1 where nothing stands there."""

    @property
    def total(self) -> int:
        return self.tokens(len(self) - 1)

    def data(self, position: int) -> bytes:  # noqa: ARG002
        """What the block says, where that is known."""
        return b""


class RenderedPrompt(Prompt):
    """A rendered call with its plan. Keys of a growing conversation are made once."""

    def __init__(
        self, rendered: Rendered, plan: Plan, before: RenderedPrompt | None = None
    ) -> None:
        """`before` is the turn before: what has not changed is taken from it."""
        self._rendered = rendered
        self._counts: Counts | None = None
        self._tokens: dict[int, int] = {}
        self._runs: list[_Placed] = []
        first, leading, same = 0, 0, 0
        known = before._runs if before is not None else []
        for at, run in enumerate(rendered.runs):
            if same == at < len(known) and known[at][0] is run:
                same += 1  # tools and system blocks are the same objects from turn to turn
            self._runs.append((run, first))
            first += run.count
            if run.section != "messages":
                leading = first
        self._chains: list[list[bytes]] = [] if before is None else before._chains[:same]
        """The keys of the blocks of each run, as far as they were asked for."""
        # Nearly everything that is asked is asked of the last run.
        self._last = self._runs[-1][1] if self._runs else 0
        self._last_keys: list[bytes] | None = None
        self._count, self._leading = first, leading - 1
        cache_params = rendered.envelope.cache_params
        if before is not None and before._rendered.envelope.cache_params == cache_params:
            self.cache_params = before.cache_params
        else:
            self.cache_params = dict(cache_params)
        self.mark(plan)

    def mark(self, plan: Plan) -> None:
        """Another plan for the same call."""
        self.markers = plan.marks
        self.automatic = plan.automatic
        held = plan.held
        self.held, self.handle = (0, "") if held is None else (held.chunks, held.handle)

    def __len__(self) -> int:
        return self._count

    def _at(self, position: int) -> _Placed:
        """The run that a block is in."""
        for placed in reversed(self._runs):
            if position >= placed[1]:
                return placed
        raise IndexError(position)

    def key(self, position: int) -> bytes:
        if position >= self._last:
            if self._last_keys is None:
                self._last_keys = self._chain_of(len(self._runs) - 1)
            return self._last_keys[position - self._last]
        runs = self._runs
        at = len(runs) - 2
        while position < runs[at][1]:
            at -= 1
        chains = self._chains
        keys = chains[at] if at < len(chains) else self._chain_of(at)
        return keys[position - runs[at][1]]

    def _chain_of(self, at: int) -> list[bytes]:
        """The keys of a run; hashing is put off until one is asked for."""
        chains = self._chains
        while len(chains) <= at:
            last = chains[-1][self._runs[len(chains) - 1][0].count - 1] if chains else b""
            chains.append(_chain(self._runs[len(chains)][0], last))
        return chains[at]

    def tokens(self, position: int) -> int:
        tokens = self._tokens.get(position)
        if tokens is None:
            tokens = self._tokens[position] = self.counts.tokens(position + 1)
        return tokens

    @property
    def counts(self) -> Counts:
        if self._counts is None:
            self._counts = Counts(self._rendered)
        return self._counts

    def kind(self, position: int) -> Kind:
        run, first = self._at(position)
        return run.log.kinds[position - first]

    def data(self, position: int) -> bytes:
        return self._rendered.chunk(position).data

    def section(self, position: int) -> Section:
        return self._at(position)[0].section

    def spoken(self, position: int) -> bool:
        run, first = self._at(position)
        if run.section != "messages":
            return False
        at = position - first
        # Some wires say calls and reasoning outside of any message.
        return run.log.kinds[at] in _SPOKEN or _role(run, at) in ("assistant", "model")

    def may_mark(self, position: int) -> bool:
        run, first = self._at(position)
        return run.log.splices[position - first] >= 0

    def turn_ends(self) -> Iterator[int]:
        after: Kind | None = None
        for run, first in reversed(self._runs):
            if run.section != "messages":
                continue
            log = run.log
            end = run.count
            for message in range(log.wire_message_of(run.count - 1), -1, -1):
                kind = log.kinds[end - 1]
                if kind is Kind.TOOL_RESULT:
                    ends = after is not Kind.TOOL_RESULT
                else:
                    ends = kind not in _SPOKEN and log.roles[message] == "user"
                if ends:
                    yield first + end - 1
                end = log.opens[message]
                after = log.kinds[end]

    @property
    def leading(self) -> int:
        return self._leading


def _role(run: ChunkRun, at: int) -> str:
    return run.log.roles[run.log.wire_message_of(at)]


def _chain(run: ChunkRun, before: bytes) -> list[bytes]:
    """The keys of a run's blocks, of which only the new ones are made."""
    base, log = before + b"\0" + run.lead, run.log
    known = log.keys
    if known is None or known[0] != base:
        known = log.keys = (base, [])
    keys = known[1]
    done = len(keys)
    if done < run.count:
        last, start = keys[-1] if keys else base, log.start(done)
        new, begin = log.slice(start, log.ends[run.count - 1]), start
        for end in log.ends[done : run.count]:
            last = blake3(last + new[begin - start : end - start]).digest(16)
            keys.append(last)
            begin = end
    return keys


class TokenRuns(Prompt):
    """Runs of tokens, for traces and for trying things out: each block by its identity and size."""

    def __init__(
        self,
        blocks: Sequence[tuple[Hashable, int]],
        *,
        markers: tuple[Mark, ...] = (),
        automatic: Ttl | None = None,
        kinds: Sequence[Kind] | None = None,
        sections: Sequence[Section] | None = None,
        cache_params: Mapping[str, bytes] | None = None,
        spoken: Sequence[bool] | None = None,
        held: int = 0,
        handle: str = "",
    ) -> None:
        self._keys: list[int] = []
        key = 0
        for identity, _ in blocks:
            key = hash((key, identity))
            self._keys.append(key)
        self._tokens = list(itertools.accumulate(tokens for _, tokens in blocks))
        self._kinds = kinds
        self._sections = sections
        self._spoken = spoken
        self.markers = markers
        self.automatic = automatic
        self.cache_params = cache_params or {}
        self.held = held
        self.handle = handle

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, position: int) -> Key:
        return self._keys[position]

    def tokens(self, position: int) -> int:
        return 0 if position < 0 else self._tokens[position]

    def kind(self, position: int) -> Kind:
        return Kind.TEXT if self._kinds is None else self._kinds[position]

    def section(self, position: int) -> Section:
        return "messages" if self._sections is None else self._sections[position]

    def spoken(self, position: int) -> bool:
        return self._spoken is not None and self._spoken[position]

    def may_mark(self, position: int) -> bool:
        return self.kind(position) is not Kind.THINKING

    def turn_ends(self) -> Iterator[int]:
        """A block is taken for a message here."""
        after: Kind | None = None
        for position in range(len(self) - 1, self.leading, -1):
            kind = self.kind(position)
            run_goes_on = kind is Kind.TOOL_RESULT and after is Kind.TOOL_RESULT
            if not self.spoken(position) and not run_goes_on:
                yield position
            after = kind

    @property
    def leading(self) -> int:
        return next(
            (at - 1 for at in range(len(self)) if self.section(at) == "messages"), len(self) - 1
        )
