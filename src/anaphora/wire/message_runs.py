"""The messages of a call as runs, for wires that render each segment by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from anaphora.prompt import Segment
from anaphora.rendered import ChunkRun, Rendered
from anaphora.values import Notice

from .rendering import AddMessages, extend_log, previous_run


def message_runs(
    segments: Iterable[Segment],
    previous: Rendered | None,
    add: Callable[[Segment], AddMessages],
    *,
    opening: bytes,
    glue: Callable[[str], bytes],
    close: Callable[[str], bytes],
    first_message: int = 0,
    place: str = "",
    blocks: str = "content",
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run per segment, and the notices of its messages. `glue` and `close` take the wire role
    of the message before them; `first_message` is how many the body has before these."""
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for segment in segments:
        messages = segment.messages
        last = previous_run(previous, "messages", segment.role)
        shared = messages.common_prefix(last.source, ids=True) if last is not None else 0
        log, count = extend_log(messages, last, shared, add(segment))
        if log.notices:
            notices += [notice for index, notice in log.notices if index < len(messages)]
        if not count:
            continue
        lead = opening
        if runs:
            lead = glue(runs[-1].last_role)
            first_message = runs[-1].position(runs[-1].count - 1)[0] + 1
        runs.append(
            ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                source=messages,
                first_message=first_message,
                place=place,
                blocks=blocks,
            )
        )
    if runs:
        runs[-1] = msgspec.structs.replace(runs[-1], close=close(runs[-1].last_role))
    return runs, notices
