"""How long a cached prefix may be: the minimum, granules, what stays uncached, the answer."""

from __future__ import annotations

from .evidence import Evidence, after, bill
from .seen import Seen

#: Reads that are no multiple of this are exact; a multiple may be so by chance.
_FINE = 64

#: An answer that is so much longer than what is sent back of it holds hidden reasoning.
_HIDDEN = 1.5


def minimum_tokens(call: Seen, value: int) -> Evidence | None:
    """A prefix near the minimum, from either side; a long one says nothing of it."""
    told, says = call.billed, f"nothing shorter than {value:,} is cached"
    if told.cached:
        least = told.cache_read or told.written
        # What is uncached may stand before a write, so that its prefix is as long as the prompt.
        most = told.cache_read or told.total
        if least >= 2 * value or least < value <= most:
            return None
        return Evidence(least >= value, bill(call), says)
    if not call.marked:
        return None  # an implicit cache may miss for other reasons
    if told.total < value:
        # That nothing was cached speaks only where the client marks at all.
        return Evidence(True, bill(call), says) if _marks(call) else None
    if not _marks_end(call) or told.total < value + _tail(call):
        return None
    return Evidence(False, bill(call), f"a marked prefix of {value:,} and more is written")


def granule_tokens(call: Seen, value: int) -> Evidence | None:
    read = call.billed.cache_read
    if not read:
        return None
    if value == 1:
        exact = read % _FINE != 0
        return Evidence(True, bill(call), "reads end anywhere") if exact else None
    return Evidence(read % value == 0, bill(call), f"reads are multiples of {value:,}")


def uncached_tail(call: Seen, value: int) -> Evidence | None:
    """Only where the end is known to be marked, and the marker had an effect."""
    if not (call.marked and call.billed.cached and _marks_end(call)):
        return None
    says = f"at most {value:,} tokens behind the last marker stay uncached"
    return Evidence(call.billed.input <= value, bill(call), says)


def output_cached(call: Seen, value: bool) -> Evidence | None:
    """Whether a read goes past the prompt before, into its answer. Conclusive when no other call
    has sent that answer before, it is long enough to be told from rounding, and all of it came
    back."""
    before = call.before
    if before is None or not (call.same and call.alone) or call.answer is None:
        return None
    output, prompt = before.billed.output, before.billed.total
    granule = call.rules.granule_tokens.value
    read = call.billed.cache_read
    if not output or output < 2 * max(granule, 16):
        return None
    if call.marked:
        return _output_marked(call, value, before)
    if read > prompt:
        if not call.whole or read > prompt + output + granule:
            return None  # a client's calls on the side send the answer, too, and are not recorded
        along = True
    elif read <= prompt - 2 * granule or read == 0 or not _comes_back(call, output):
        return None  # not even the prompt was found, or the answer was sent back in part
    else:
        along = False
    return Evidence(along is value, _with_prompt(call), _says(value))


def _output_marked(call: Seen, value: bool, before: Seen) -> Evidence | None:
    """Behind markers: the next call reads exactly what was left, or the answer, too."""
    read, output = call.billed.cache_read, before.billed.output or 0
    if before.billed.cached and read == before.billed.cached:
        return Evidence(not value, _with_prompt(call), _says(value))
    end = before.billed.total + output
    if abs(read - end) <= _tail(call):
        return Evidence(value, _with_prompt(call), _says(value))
    return None


def _says(along: bool) -> str:
    return "the answer is cached along" if along else "the answer is not cached along"


def _with_prompt(call: Seen) -> str:
    assert call.before is not None
    was = call.before.billed
    return f"{after(call)}, which sent {was.total:,} and answered {was.output:,}"


def _comes_back(call: Seen, output: int) -> bool:
    """Whether all of an answer is in the next prompt: reasoning that stays with the provider makes
    it another text."""
    assert call.before is not None
    assert call.answer is not None
    grown = call.billed.total - call.before.billed.total
    return call.in_loop and grown >= output and output <= _HIDDEN * call.answer + 16


def _tail(call: Seen) -> int:
    figure = call.rules.uncached_tail
    return 0 if figure is None else figure.value


def _marks(call: Seen) -> bool:
    """Whether the client is known to mark: it says so, or its bills have shown it."""
    marked = call.spots.marked(call.sent)
    if marked is not None:
        return bool(marked)
    before = call.before
    return before is not None and before.billed.cached > 0


def _marks_end(call: Seen) -> bool:
    """Whether the end is marked by the client. A breakpoint that the provider places by itself need
    not stand at the end; and where it has both kinds, OpenAI has billed tokens that nobody sent
    (1,549 for a short question in pro mode), so that a bill is not the marked prefix's length."""
    marked = call.spots.marked(call.sent)
    if not marked or call.rules.mechanism.value != "explicit":
        return False
    return marked[-1] == call.spots.end(call.sent)
