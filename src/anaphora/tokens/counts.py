"""The tokens of a rendered prompt, up to every chunk's end."""

from __future__ import annotations

import math
from itertools import pairwise

from msgspec.structs import replace

from anaphora.catalog import Profile
from anaphora.rendered import Rendered

from .bills import Bills, calibrated, learned
from .sizes import TOOLS, Size, odd_chunks

#: Tokens around the texts that no byte shows: recorded prompts were billed up to 70 more.
_FRAMING = 64


def for_model(rendered: Rendered, profile: Profile) -> Rendered:
    """A request that was split, counted as this model counts."""
    return replace(rendered, bytes_per_token=profile.bytes_per_token.value)


class Counts:
    """Counts of one rendered prompt, each made when it is asked for and corrected by the bills that
    the prompt carries. Only chunks that are new in their log are looked at."""

    __slots__ = ("_bills", "_per_token", "_rendered", "_runs", "_size")

    def __init__(self, rendered: Rendered, bills: Bills | None = None) -> None:
        """`bills`: newer ones than the prompt itself carries."""
        self._rendered = rendered
        self._bills = rendered.bills if bills is None else bills
        self._per_token = rendered.bytes_per_token
        # The schema of the answer is a parameter, and is read like a part of the prompt.
        text = other = first = 0
        for name, value in rendered.envelope.knobs:
            if name == "output_format":
                text += len(value)
        self._runs = []
        section = None
        for run in rendered.runs:
            if run.section == "tools" != section:
                other += TOOLS.get(rendered.wire, 0)
            section = run.section
            text += len(run.lead)
            count, log = run.count, run.log
            odd = odd_chunks(log, count)
            self._runs.append((first, text, other, log.ends, odd))
            first += count
            text += log.ends[count - 1]
            if odd.ends:
                away, tokens = odd.upto(count)
                text -= away
                other += tokens
        self._size = first

    def __len__(self) -> int:
        return self._size

    @property
    def total(self) -> int:
        return self.tokens(self._size)

    def tokens(self, chunks: int) -> int:
        """The first `chunks` chunks, as they are billed by what is known."""
        estimated = self.estimated(chunks)
        return calibrated(self._bills, estimated) if self._bills else estimated

    def estimated(self, chunks: int) -> int:
        """The same by bytes and the catalog's ratio alone."""
        text, other = self.size(chunks)
        return math.ceil(text / self._per_token) + other

    def size(self, chunks: int) -> Size:
        """What is counted of the first `chunks` chunks."""
        for first, text, other, ends, odd in reversed(self._runs):
            if chunks > first:
                text += ends[chunks - first - 1]
                if odd.ends:
                    away, tokens = odd.upto(chunks - first)
                    return Size(text - away, other + tokens)
                return Size(text, other)
        return Size()

    def sizes(self) -> list[Size]:
        """What is counted of each chunk."""
        totals = [self.size(chunks) for chunks in range(self._size + 1)]
        return [
            Size(upto.text - before.text, upto.other - before.other)
            for before, upto in pairwise(totals)
        ]

    def before(self, offset: int) -> int:
        """The tokens before a byte of the prompt."""
        if offset >= self._rendered.size:
            return self.total
        chunk = self._rendered.at_offset(offset)
        before, upto = self.size(chunk), self.size(chunk + 1)
        inside = min(offset - self._rendered.offset(chunk), upto.text - before.text)
        estimated = Size(before.text + inside, before.other).tokens(self._per_token)
        return calibrated(self._bills, estimated)

    def bounds(self, error: float) -> tuple[int, int]:
        """Between how many tokens the prompt is likely to be billed: `error` is the share by which
        an estimate of text may be off (`profile.token_error`). What was billed is sure, and what is
        no text is known to a factor of four."""
        text, other = self.size(self._size)
        total, unsure = self.total, math.ceil(text / self._per_token)
        if self._bills:
            new = max(0, total - self._bills[-1][1])
            unsure, other = min(unsure, new), min(other, max(0, new - unsure))
        margin = math.ceil(unsure * error) + (_FRAMING if unsure else 0)
        return max(0, total - margin - other), total + margin + 3 * other

    def billed(self, total: int | None, kept: tuple[int, int] | None = None) -> Bills:
        """The bills that the next prompt of the conversation carries, when this one was billed
        `total` tokens. `kept`: how many chunks of it are in the cache, and how many tokens they
        were billed as."""
        bills = self._bills
        if kept is not None and 0 < kept[1] <= (total or 0):
            bills = learned(bills, self.estimated(kept[0]), kept[1])
        return learned(bills, self.estimated(self._size), total)
