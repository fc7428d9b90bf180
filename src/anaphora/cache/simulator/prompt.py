"""A request as a cache sees it: blocks in hash order, the key of the prefix up to each, and the
markers.

The key of a block identifies the whole prefix that it ends: two prompts with the same key agree on
everything up to there. Keys and token counts are computed on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import takewhile
from typing import Any

from blake3 import blake3

from anaphora.rendered import ChunkRun, Kind, Mark, Plan, Rendered
from anaphora.rendered.chunks import Stretches
from anaphora.rendered.log import KEY
from anaphora.tokens import Counts
from anaphora.values import Section, Ttl

#: Bytes up to which SHA-256 is faster than BLAKE3, which works on many kilobytes at once.
_SHORT = 2048
#: Copied for each block, which is faster than a new one.
_SHA256 = sha256()
#: The plan of a prompt of which only the blocks are looked at.
UNMARKED = Plan()
RESULT = Kind.TOOL_RESULT  # access to an enum member is slow, and every turn needs it
_MODEL_KINDS = (Kind.TOOL_CALL, Kind.THINKING)


def is_from_model(run: ChunkRun, index: int) -> bool:
    """Whether the model wrote a chunk of a run."""
    if run.section != "messages":
        return False
    log = run.log
    # Some wires send tool calls and reasoning outside of any message.
    if log.kinds[index] in _MODEL_KINDS:
        return True
    return log.role_of(index) in ("assistant", "model")


def _are_like(first: tuple[ChunkRun, ...], runs: tuple[ChunkRun, ...]) -> bool:
    """Whether runs begin with those, or with equal parts of another request, whose log has its own
    text."""
    if len(runs) < len(first):
        return False
    for mine, other in zip(first, runs, strict=False):
        if mine is other:
            continue
        log, base = mine.log, mine.log.base
        if base is not other.log.base or base is log:
            return False
        if mine.count != other.count or mine.lead != other.lead:
            return False
    return True


class RenderedPrompt:
    """A rendered call with its plan. Positions count blocks from 0. The keys of a growing
    conversation are computed once."""

    markers: tuple[Mark, ...] = ()
    automatic: Ttl | None = None
    held = 0
    handle = ""

    def __init__(
        self, rendered: Rendered, plan: Plan, before: RenderedPrompt | None = None
    ) -> None:
        """`before` is the previous turn; unchanged parts are taken from it."""
        self.rendered = rendered
        self._counts: Counts | None = None
        self._tokens: dict[int, int] = {}
        runs = rendered.runs
        log = runs[-1].log if runs and runs[-1].section == "messages" else None
        known: LeadingRuns | None = None if before is None else before.lead
        if known is None and log is not None:
            known = log.leading
        lead = known
        if (
            lead is None
            or (len(runs) > (size := len(lead.runs)) and runs[size].section != "messages")
            or not _are_like(lead.runs, runs)
        ):
            lead = LeadingRuns(runs)
        self.lead: LeadingRuns = lead
        if log is not None and log.leading is not lead:
            log.leading = lead
        self.leading = lead.count - 1
        """`leading` is the last block before the messages; -1 if there is none."""
        self.placed_runs: list[tuple[ChunkRun, int]] = []
        """The runs, and the first position of each."""
        first = 0
        for run in runs:
            self.placed_runs.append((run, first))
            first += run.count
        self.count = first
        """How many blocks."""
        self._chains: dict[int, bytearray] = {}
        """The keys of each run's blocks, as far as they were needed."""
        params = rendered.envelope.cache_params
        self.cache_params: Mapping[str, bytes]
        """The parameters that affect the cache, by the names of the rules."""
        self.hashed: tuple[int, set[int]] | None = None
        """A position, and hashes of the blocks from there on (`compared_prompt.block_hashes`)."""
        if before is not None and before.rendered.envelope.cache_params == params:
            self._params: Mapping[str, bytes] = before._params
            self.cache_params = before.cache_params
        else:
            self._params = self.cache_params = dict(params)
        if plan is not UNMARKED:
            self.mark(plan)
        else:
            self.cache_params = self._params

    def without_text(self, *, leading: bool) -> Rendered:
        """`Rendered.without_text`, once the keys and counts are known, which need the text."""
        self.lead.hash(self.placed_runs)  # prompts with other tools may have replaced the keys
        self.tokens(0)
        return self.rendered.without_text(leading=leading)

    def mark(self, plan: Plan) -> None:
        key = None if plan.key is None else plan.key.encode()
        if key is None:
            self.cache_params = self._params
        elif self.cache_params.get("cache_key") != key:
            self.cache_params = {**self._params, "cache_key": key}
        self.markers, self.automatic, held = plan.marks, plan.automatic, plan.held
        self.held, self.handle = (0, "") if held is None else (held.chunks, held.handle)

    def __len__(self) -> int:
        return self.count

    @property
    def total(self) -> int:
        return self.tokens(self.count - 1)

    @property
    def size(self) -> int:
        """Bytes of its last run; the others are mostly shared."""
        if not self.placed_runs:
            return 0
        run, _ = self.placed_runs[-1]
        return run.log.start(run.count)

    def key(self, position: int) -> bytes:
        if position <= self.leading:
            keys = self.lead.keys or self.lead.hash(self.placed_runs)
            return bytes(keys[KEY * position : KEY * (position + 1)])
        index = len(self.placed_runs) - 1  # nearly every lookup is in the last run
        while position < self.placed_runs[index][1]:
            index -= 1
        keys = self._chains.get(index) or self.chain_of(index)
        begin = KEY * (position - self.placed_runs[index][1])
        return bytes(keys[begin : begin + KEY])

    def tokens(self, position: int) -> int:
        tokens = self._tokens.get(position)
        if tokens is None:
            counts = self.counts if self._counts is None else self._counts
            tokens = self._tokens[position] = counts.tokens(position + 1)
        return tokens

    def tokens_within(self, position: int, size: int) -> int:
        """The tokens before the byte `size` of a block."""
        return self.counts.within(position, size)

    @property
    def counts(self) -> Counts:
        if self._counts is None:
            self._counts = Counts(self.rendered)
        return self._counts

    def section(self, position: int) -> Section:
        for run, first in self.placed_runs:
            if position < first + run.count:
                return run.section
        raise IndexError(position)

    def is_trailing_system(self, position: int) -> bool:
        """Whether the request ends with a system message inside the messages, and this is in it."""
        run, first = self.placed_runs[-1]
        log, last = run.log, run.count - 1
        if run.section != "messages" or position < first or log.role_of(last) != "system":
            return False
        return log.wire_message_of(position - first) == log.wire_message_of(last)

    def kind(self, position: int) -> Kind:
        run, first = self.run_of(position)
        return run.log.kinds[position - first]

    def data(self, position: int) -> bytes:
        run, first = self.run_of(position)
        log, index = run.log, position - first
        data = log.slice(log.start(index), log.ends[index])
        return data if index else run.lead + data

    def texts(self, begin: int) -> list[bytes]:
        """The data of all blocks from `begin` on."""
        texts: list[bytes] = []
        for run, first in self.placed_runs:
            if first + run.count > begin:
                log, low = run.log, max(0, begin - first)
                start, cut = log.start(low), 0
                ends = log.ends[low : run.count]
                data = log.slice(start, ends[-1])
                new = len(texts)
                for end in ends:
                    texts.append(data[cut : end - start])
                    cut = end - start
                if not low:
                    texts[new] = run.lead + texts[new]
        return texts

    def from_model(self, position: int) -> bool:
        run, first = self.run_of(position)
        return is_from_model(run, position - first)

    def can_mark(self, position: int) -> bool:
        run, first = self.run_of(position)
        return run.log.splices[position - first] >= 0

    def turn_ends(self, before: int | None = None) -> Iterator[int]:
        """The ends of user messages and runs of tool results, latest first. Runs that begin at
        `before` or later are left out."""
        next_kind: Kind | None = None
        for run, first in reversed(self.placed_runs):
            if run.section != "messages":
                continue
            log, end = run.log, run.count
            if before is not None and first >= before:
                next_kind = log.kinds[0]
                continue
            for message in range(log.wire_message_of(run.count - 1), -1, -1):
                kind = log.kinds[end - 1]
                if kind is RESULT:
                    ends = next_kind is not RESULT
                else:
                    ends = kind not in _MODEL_KINDS and log.roles[message] == "user"
                if ends:
                    yield first + end - 1
                end = log.opens[message]
                next_kind = log.kinds[end]

    def run_of(self, position: int) -> tuple[ChunkRun, int]:
        for placed in reversed(self.placed_runs):
            if position >= placed[1]:
                return placed
        raise IndexError(position)

    def chain_of(self, index: int) -> bytearray:
        """The keys of a run, one after the other; earlier runs are hashed when first needed."""
        run, first = self.placed_runs[index]
        before = b""
        if first:
            lead = self.lead
            known = (lead.keys or lead.hash(self.placed_runs)) if first == lead.count else None
            before = self.key(first - 1) if known is None else bytes(known[-KEY:])
        keys = self._chains[index] = _chain(run, before)
        return keys


class LeadingRuns:
    """The runs before the messages: tools and system blocks, the same from turn to turn."""

    def __init__(self, runs: tuple[ChunkRun, ...]) -> None:
        """`runs` are all of a prompt."""
        leading = takewhile(lambda run: run.section != "messages", runs)
        self.runs = tuple([run.without_text() for run in leading])
        self.count = sum([run.count for run in self.runs])
        self.keys = bytearray()
        """The keys of all blocks, once they were needed."""
        self.candidates: Any = None
        """The planner's candidates for breakpoints in them."""

    def hash(self, placed: list[tuple[ChunkRun, int]]) -> bytearray:
        """`placed` are the runs of a prompt that begins with these."""
        keys = bytearray()
        for run, _ in placed[: len(self.runs)]:
            keys += _chain(run, bytes(keys[-KEY:]))[: KEY * run.count]
        self.keys = keys
        return keys


def share_keys(known: Stretches, stretches: Stretches) -> None:
    """Take over the keys of a prompt that has the same bytes, so that they are not hashed again."""
    for (lead, log, count), (other_lead, other, other_count) in zip(known, stretches, strict=False):
        if (lead, count) != (other_lead, other_count) or log.ends[:count] != other.ends[:count]:
            return  # divided differently
        if other.keys is None and log.keys is not None:
            other.keys = log.keys[0], log.keys[1][: KEY * count]


def _chain(run: ChunkRun, before: bytes) -> bytearray:
    """The keys of a run's blocks; only new blocks are hashed."""
    base, log = before + b"\0" + run.lead, run.log
    known = log.keys
    if known is None or known[0] != base:
        known = log.base.keys
        if known is None or known[0] != base:
            known = (base, bytearray())
        log.keys = log.base.keys = known
    keys = known[1]
    done = len(keys) // KEY
    if done < run.count:
        last, start, begin = base, 0, 0
        if done:
            last, start = bytes(keys[-KEY:]), log.ends[done - 1]
        added: list[bytes] = []
        new = memoryview(log.slice(start, log.ends[run.count - 1]))
        for end in log.ends[done : run.count]:
            end -= start
            short = len(last) + end - begin < _SHORT
            hashed = _SHA256.copy() if short else blake3()
            hashed.update(last)
            hashed.update(new[begin:end])
            last = hashed.digest()[:KEY]
            added.append(last)
            begin = end
        # In one step, since another thread may add the same keys.
        keys[KEY * done : KEY * run.count] = b"".join(added)
    return keys


def deepest_known(count: int, is_known: Callable[[int], bool]) -> int:
    """The last of `count` positions that is known, by galloping back from the end; -1 if none is.
    All positions before a known one are known."""
    high, step = count, 1
    low = high - step
    while low >= 0 and not is_known(low):
        high, step = low, step * 2
        low = high - step
    if low < 0:
        if high == 0 or not is_known(0):
            return -1
        low = 0
    return low + bisect_left(range(low + 1, high), True, key=lambda index: not is_known(index))
