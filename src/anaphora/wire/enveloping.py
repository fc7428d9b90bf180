"""Recent envelopes of a wire; `Memo.envelope` replaces it."""

from __future__ import annotations

from msgspec.structs import astuple

from anaphora.prompt import Call
from anaphora.rendered import Envelope

_KEPT = 8


class Envelopes:
    """The last few of a wire: calls of an app mostly differ in what they say, not in how.

    Only those whose parameters are numbers and words: among other values there are some that look
    the same as bytes, and one of them may be refused.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[tuple[type, ...], Envelope], ...] = ()

    def find(self, call: Call, source: object, last: Envelope | None) -> Envelope | None:
        """The last turn's, or another that was made of the same."""
        if last is not None and last.source == source:
            return last
        kinds = _kinds(call)
        if kinds is not None:
            for known, envelope in self._known:
                if known == kinds and envelope.source == source:
                    return envelope
        return None

    def keep(self, call: Call, envelope: Envelope) -> Envelope:
        if (kinds := _kinds(call)) is not None:
            self._known = (kinds, envelope), *self._known[: _KEPT - 1]
        return envelope


_WORDS = frozenset({type(None), bool, int, float, str})


def _kinds(call: Call) -> tuple[type, ...] | None:
    """The types of everything that an envelope is made of, where all of it is numbers and words;
    else None."""
    if call.extras is not None or call.ir.continuation is not None:
        return None
    said = (*astuple(call.params), *astuple(call.ir.cache))
    kinds = tuple(map(type, said))
    for kind, value in zip(kinds, said, strict=True):
        if kind not in _WORDS and value != ():
            return None
    return kinds
