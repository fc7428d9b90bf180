"""The tokens of a rendered prompt, up to every chunk's end.

    counts = count_chunks(rendered, profile, calibration)
    counts.total                       the whole prompt, with its bounds
    counts[7]                          everything up to the end of chunk 7
    calibration = counts.billed(usage.input)

On a growing conversation only new chunks are counted; what was billed is not estimated again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from weakref import ref

import msgspec
from blake3 import blake3

from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.rendered import Rendered

from .calibration import BILLS, Bill, Calibration, Growth, Prefix
from .count import NOTHING, Count
from .figures import framing
from .tally import Method, Part, tally, together
from .tokenizers import Tokenizer

#: Less than this is mostly framing and rounding, and says little of the text.
_SHORTEST = 16


def count_chunks(
    rendered: Rendered,
    profile: Profile,
    calibration: Calibration | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> Counts:
    """Counts by bytes, or with a tokenizer by the texts themselves (OpenAI's wires). Nothing is
    counted before it is asked for.

    What a provider's own tools bring along or find, nobody can count beforehand; a bill teaches it.
    """
    if tokenizer is None:
        return Counts(rendered, Method(profile), calibration or Calibration())
    if tokenizer.family != profile.tokenizer.value:
        raise InvalidRequest(
            f"{profile.id} has the tokenizer {profile.tokenizer.value}, not {tokenizer.family}",
            path="tokenizer",
        )
    method = Method(profile, framing(rendered.wire, profile), tokenizer)
    return Counts(rendered, method, calibration or Calibration())


class Counts:
    """Cumulative counts of one rendered prompt. Made by `count_chunks`."""

    __slots__ = ("__dict__", "_method", "calibration", "rendered")

    def __init__(self, rendered: Rendered, method: Method, calibration: Calibration) -> None:
        self.rendered = rendered
        self.calibration = calibration
        self._method = method

    def __len__(self) -> int:
        return len(self.rendered)

    def __getitem__(self, chunk: int) -> Count:
        """Everything up to the end of a chunk."""
        at = chunk + len(self) if chunk < 0 else chunk
        if not 0 <= at < len(self):
            raise IndexError(f"chunk {chunk} of {len(self)}")
        return self.upto(at + 1)

    def __iter__(self) -> Iterator[Count]:
        return (self.upto(chunks) for chunks in range(1, len(self) + 1))

    @property
    def total(self) -> Count:
        return self.upto(len(self))

    def between(self, first: int, last: int) -> Count:
        """The chunks from `first` up to, not including, `last`."""
        return self._corrected(self._part(last).since(self._part(first)))

    def upto(self, chunks: int) -> Count:
        """The first `chunks` chunks."""
        below = above = None
        for knot in self._knots:
            if knot.chunks <= chunks:
                below = knot
            elif above is None:
                above = knot
        if below is not None and above is None:
            return below.count + self._corrected(self._part(chunks).since(below.part))
        if above is not None:
            return self._within(chunks, below or _Knot(0, Part(), NOTHING), above)
        whole = self._part(chunks)
        if not self._known.growths:
            return self._corrected(whole)
        # The beginning of a prompt is not like what was appended to it: no surer than uncorrected.
        return self._corrected(whole, at_least=self._method.text(whole).error)

    def tokens(self, chunks: int) -> int:
        """How many the first `chunks` chunks are, for those who do not ask how sure that is."""
        if self.calibration.bills or self.calibration.growths:
            return self.upto(chunks).tokens
        return self._method.tokens(self._part(chunks))

    def billed(self, total: int | None) -> Calibration:
        """What is known once this prompt was billed `total` input tokens (`usage.input`)."""
        if total is None or total <= 0:
            return self.calibration
        learnt = self._known
        growth = self._growth(total)
        if growth is not None:
            learnt = learnt.learnt(growth)
        kept = self.rendered.cacheable
        bill = Bill(
            prompt=_prefix(self.rendered, len(self)),
            total=Count.exactly(total),
            kept=_prefix(self.rendered, kept),
            tail=self.between(kept, len(self)),
            knobs=self._knobs,
        )
        bills = (*(earlier for earlier in self._bills if earlier.prompt != bill.prompt), bill)
        return msgspec.structs.replace(learnt, bills=bills[-BILLS:])

    # ── What was billed before ───────────────────────────────────────────────────────────────────

    @functools.cached_property
    def _known(self) -> Calibration:
        """The calibration, if it is of this wire, model and method; otherwise a new one."""
        basis = (self.rendered.wire, self.rendered.model, repr(self._method.tokenizer))
        return self.calibration if self.calibration.basis == basis else Calibration(basis)

    @functools.cached_property
    def _knobs(self) -> bytes:
        state = blake3()
        for name, value in self.rendered.envelope.knobs:
            state.update(b"%s\0%d\0%s" % (name.encode(), len(value), value))
        return state.digest()

    @functools.cached_property
    def _bills(self) -> tuple[Bill, ...]:
        """The bills of prompts that this one begins with."""
        bills = self._known.bills
        for at in range(len(bills) - 1, -1, -1):
            newest = bills[at]
            if newest.knobs != self._knobs:
                continue
            if not _begins_with(self.rendered, newest.prompt):
                newest = newest.shortened()
                if not newest.prompt.chunks or not _begins_with(self.rendered, newest.prompt):
                    continue
            # The earlier ones are beginnings of the prompt that this one was of.
            reach = newest.prompt.chunks
            return (*(bill for bill in bills[:at] if bill.prompt.chunks < reach), newest)
        return ()

    @functools.cached_property
    def _knots(self) -> tuple[_Knot, ...]:
        """Where the count is known from a bill, first to last, each no more than the next."""
        knots: list[_Knot] = []
        for bill in reversed(self._bills):
            knot = _Knot(bill.prompt.chunks, self._part(bill.prompt.chunks), bill.total)
            if not knots or knot.before(knots[-1]):
                knots.append(knot)
        return tuple(reversed(knots))

    def _growth(self, total: int) -> Growth | None:
        if not self._knots:
            return None
        last = self._knots[-1]
        new = self._part(len(self)).since(last.part)
        estimated, billed = self._method.text(new).tokens, total - last.count.tokens
        # Media say nothing about text, and neither does a guess about a tail that went.
        sure = 4 * (last.count.high - last.count.low) <= estimated
        if estimated < _SHORTEST or billed <= 0 or new.media.high or not sure:
            return None
        return Growth(billed / estimated, estimated)

    # ── Estimates ────────────────────────────────────────────────────────────────────────────────

    def _part(self, chunks: int) -> Part:
        """The first chunks as they are counted without any bill."""
        if not chunks:
            return Part()
        first, before, led = self._leading
        if chunks > first:
            run = self.rendered.runs[-1]
            return led + tally(run.log, self._method).upto(chunks - first, run.log, self._method)
        return before if chunks == first else self._summed(chunks)

    @functools.cached_property
    def _leading(self) -> tuple[int, Part, Part]:
        """How many chunks there are before the last run; those; and with all that leads it. Tools
        and system blocks are the same from turn to turn, and mostly for all conversations."""
        *others, run = self.rendered.runs
        if not others:
            return self._led(0)
        key = (
            self.rendered.wire,
            self.rendered.envelope.knobs,
            run.section,
            run.lead,
            [(ref(other.log), other.count, other.lead) for other in others],
        )
        known = tally(others[-1].log, self._method)
        led = known.led
        if led is None or led[0] != key:
            led = known.led = key, self._led(sum([other.count for other in others]))
        return led[1]

    def _led(self, chunks: int) -> tuple[int, Part, Part]:
        run, before = self.rendered.runs[-1], self._summed(chunks)
        parts = [before, self._method.glue(run.lead)]
        if not chunks:
            parts.append(self._method.opening(self.rendered))
        if run.section == "tools":
            parts.append(self._method.having_tools(self.rendered))
        return chunks, before, together(parts)

    def _summed(self, chunks: int) -> Part:
        method, left = self._method, chunks
        parts = [method.opening(self.rendered)] if chunks else []
        for run in self.rendered.runs:
            take = min(left, run.count)
            if not take:
                break
            counted = tally(run.log, method).upto(take, run.log, method)
            parts += (method.glue(run.lead), counted)
            if run.section == "tools":
                parts.append(method.having_tools(self.rendered))
            left -= take
        return together(parts)

    @functools.cached_property
    def _ratio(self) -> float:
        return self._known.ratio

    def _corrected(self, part: Part, at_least: float = 0.0) -> Count:
        text = self._method.text(part)
        if self._known.growths:
            error = max(at_least, self._known.error(text.error))
            text = Count.about(round(text.tokens * self._ratio), error)
        return text + part.media

    def _within(self, chunks: int, below: _Knot, above: _Knot) -> Count:
        """Between two known counts, in proportion. What stands there may be unlike the rest, but it
        is no more than what was billed for both sides together."""
        part = self._part(chunks)
        up = self._method.text(part.since(below.part)) + part.since(below.part).media
        down = self._method.text(above.part.since(part)) + above.part.since(part).media
        billed, estimated = above.count.tokens - below.count.tokens, up.tokens + down.tokens
        share = billed / estimated if estimated else 0.0
        tokens = below.count.tokens + round(up.tokens * share)
        margin = max(up.error, down.error) * min(up.tokens, down.tokens) * share
        return Count(
            tokens,
            max(below.count.low, min(tokens, round(tokens - margin))),
            min(above.count.high, max(tokens, round(tokens + margin))),
        )


class _Knot(msgspec.Struct, frozen=True):
    """A place in the prompt up to which the count is known."""

    chunks: int
    part: Part
    count: Count

    def before(self, later: _Knot) -> bool:
        mine, theirs = self.count, later.count
        fewer = mine.tokens <= theirs.tokens and mine.high <= theirs.high
        return self.chunks < later.chunks and fewer and mine.low <= theirs.low


def _prefix(rendered: Rendered, chunks: int) -> Prefix:
    return Prefix(chunks, rendered.offset(chunks), rendered.digest(chunks))


def _begins_with(rendered: Rendered, prefix: Prefix) -> bool:
    """Size first: where it differs, nothing is hashed."""
    if prefix.chunks > len(rendered) or rendered.offset(prefix.chunks) != prefix.size:
        return False
    return rendered.digest(prefix.chunks) == prefix.digest
