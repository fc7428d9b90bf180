"""A call as a generateContent request: system instruction, tools and contents, as they are hashed.

Gemini takes no markers: it caches by itself, or holds a beginning under a handle (`held.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import ChunkLog, ChunkRun, LogAppend, Rendered
from anaphora.values import AnyTool, Message, Notice, Ttl
from anaphora.wire.foreign import foreign_sections
from anaphora.wire.markers import resolve_marks
from anaphora.wire.rendering import (
    cacheable_count,
    extend_log,
    previous_run,
    render_items,
    usable_previous,
    without_foreign_tools,
)
from anaphora.wire.shared import SharedLogs

from . import params, tools
from .messages import CLOSE, GLUE, add_messages
from .naming import OWN, WIRE
from .parts import text_part

#: Whatever lifetime is asked for, nothing carries it.
_ANY: dict[Ttl, Ttl] = {ttl: ttl for ttl in ("5m", "30m", "1h", "12h", "24h")}

_tool_logs = SharedLogs()
_system_logs = SharedLogs()


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks.

    With the rendering of the turn before in `previous`, only what was added is rendered; the
    result is the same either way. `previous` may also be an older turn, another branch, or
    another conversation: what agrees is shared.
    """
    previous = usable_previous(previous, WIRE, call.model)
    envelope = params.envelope(call, profile, previous.envelope if previous is not None else None)
    own, foreign = without_foreign_tools(call.tools, OWN)
    messages, notices = _messages(call, previous)
    runs = [*_system(call, previous), *_tools(own, previous), *messages]
    marks, frozen, unmarked = resolve_marks(
        call.ir.cache,
        runs,
        _ANY,
        lambda _: "no part takes a breakpoint here; Gemini caches by itself",
    )
    return Rendered(
        wire=WIRE,
        model=call.model,
        runs=tuple(runs),
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        envelope=envelope,
        markers={},
        marks=marks,
        frozen=frozen,
        frozen_with=params.frozen_with(envelope),
        messages_cacheable=call.ir.cache.messages,
        bytes_per_token=profile.bytes_per_token.value,
        notices=(
            *envelope.notices,
            *foreign,
            *foreign_sections(call, WIRE),
            *tools.strict_left_out(call.tools),
            *notices,
            *unmarked,
        ),
    )


def _system(call: Call, previous: Rendered | None) -> list[ChunkRun]:
    blocks = call.ir.system_field_blocks()
    if not blocks:
        return []
    log = _system_logs.get(blocks, previous_run(previous, "system"), _system_log)
    return [
        ChunkRun(
            "system",
            log,
            len(log),
            lead=SYSTEM,
            close=SYSTEM_CLOSE,
            source=blocks,
            place="systemInstruction.parts",
        )
    ]


#: Before and behind the parts of the system instruction.
SYSTEM = b'"systemInstruction":{"parts":['
SYSTEM_CLOSE = b"]},"
TOOLS = b'"tools":['
CONTENTS = b'"contents":['


def _system_log(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    said = render_items("system", blocks, lambda block: text_part(block.text, block.extras), None)
    return ChunkLog.of(said, [block.label for block in blocks], [b.cache for b in blocks])


def _tools(own: tuple[AnyTool, ...], previous: Rendered | None) -> list[ChunkRun]:
    if not own:
        return []
    last = previous_run(previous, "tools")
    log = _tool_logs.get(own, last, tools.tools_log)
    if last is not None and last.log is log:
        return [last]
    kinds = [tools.is_function(tool) for tool in own]
    close, paths = tools.close(kinds[-1]), tools.paths(kinds)
    return [ChunkRun("tools", log, len(log), lead=TOOLS, close=close, source=own, paths=paths)]


def _messages(call: Call, previous: Rendered | None) -> tuple[list[ChunkRun], list[Notice]]:
    """One run a segment, glued to the one before it; and what could not be said in them."""
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for segment in call.ir.body_runs():
        last = previous_run(previous, "messages", segment.role)
        messages, where = segment.messages, segment.role.value
        shared = messages.common_prefix(last.source, ids=True) if last is not None else 0

        def add(
            to: LogAppend,
            new: Sequence[Message],
            last_role: str | None,
            where: str = where,
            history: Sequence[Message] = messages,
        ) -> None:
            add_messages(to, new, last_role, where, history)

        log, count = extend_log(messages, last, shared, add)
        notices += [notice for at, notice in log.notices if at < len(messages)]
        if count:
            runs.append(
                ChunkRun(
                    "messages",
                    log,
                    count,
                    role=segment.role,
                    lead=GLUE if runs else CONTENTS,
                    source=messages,
                    first_message=_contents_up_to(runs[-1]) if runs else 0,
                    place="contents",
                    blocks="parts",
                )
            )
    if not runs:
        raise InvalidRequest("Gemini needs at least one content that says something", path="ir")
    runs[-1] = msgspec.structs.replace(runs[-1], close=CLOSE)
    return runs, notices


def _contents_up_to(run: ChunkRun) -> int:
    """How many contents of the body there are up to the end of a run."""
    return run.position(run.count - 1)[0] + 1
