"""The text of a remembered prompt, as far as a later one has it.

    with_text_of(earlier, later)        for what compares texts

What both prompts begin with, and blocks that occur in both, are read from the later one. The others
are placeholders of the same size: it is known which block changed, but not its earlier text.
"""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.rendered import ChunkLog, ChunkRun, Rendered
from anaphora.rendered.chunks import not_kept
from anaphora.rendered.request_log import RequestLog

from .compared_prompt import GLUE, run_hashes
from .sent_call import SentCall, same_keys


def with_text_of(earlier: SentCall, later: Rendered) -> SentCall:
    """The earlier call, the text of whose prompt may have been dropped."""
    rendered = earlier.rendered
    if rendered.has_text:
        return earlier
    runs = tuple(run if run.log.has_text else _rebuilt(run, later) for run in rendered.runs)
    return replace(earlier, rendered=replace(rendered, runs=runs))


def _rebuilt(run: ChunkRun, later: Rendered) -> ChunkRun:
    like = [each for each in later.runs if each.section == run.section and each.log.has_text]
    first = next((each for each in like if each.log.base is run.log.base), None)
    shared = 0
    if first is not None:
        shared = min(run.count, first.count)
    elif like:
        first = like[0]
        shared = same_keys(run.log, first.log, min(run.count, first.count))
    log, blocks = run.log, dict[int, bytes]()
    for other in like if shared < run.count else ():
        data, hashes = other.log, run_hashes(other)
        for index in range(shared if other is first else 0, other.count):
            blocks[hashes[index]] = data.slice(data.start(index), data.ends[index])
    hashes = run_hashes(run)
    text = b"".join(
        _sized(blocks.get(hashes[index]), log.ends[index] - log.start(index), hashes[index])
        for index in range(shared, run.count)
    )
    if first is None:
        rebuilt = RequestLog(log.base, 0, 0, text, _nothing)
    else:
        rebuilt = _reading(log, first.log, shared, text)
    rebuilt.keys = log.keys  # those of the columns may be of a prompt with another beginning
    return replace(run, log=rebuilt)


def _reading(log: ChunkLog, later: ChunkLog, shared: int, text: bytes) -> RequestLog:
    """A log whose first chunks are those of a later one, followed by this text."""
    message = log.message_of(shared)
    begin = log.message_ends[message - 1] if message else 0
    text = later.slice(log.start(begin), log.start(shared)) + text

    def earlier(own: ChunkLog, first: int, end: int) -> bytes:
        low, high = (own.message_ends[each - 1] if each else 0 for each in (first, end))
        return later.slice(own.start(low), own.start(high))

    return RequestLog(log.base, message, log.start(begin), text, earlier)


def _nothing(log: ChunkLog, first: int, end: int) -> bytes:  # noqa: ARG001
    return b""


def _sized(block: bytes | None, size: int, key: int) -> bytes:
    """A block with as much glue as it had, or a placeholder."""
    if block is None:
        return not_kept(key, size)
    return block if len(block) == size else block.lstrip(GLUE).rjust(size)
