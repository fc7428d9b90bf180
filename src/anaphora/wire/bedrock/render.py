"""Renders a call as a Converse request: tools, system and messages as chunks, in hash order.

A marker is a block `cachePoint` after the one that it marks. Where a model takes one differs by its
family, and a marker anywhere else fails the whole call; so do some combinations of blocks, which
are refused here with the reason.
"""

from __future__ import annotations

from functools import partial

from anaphora.catalog import Profile
from anaphora.prompt import Call
from anaphora.rendered import ChunkRun, Rendered
from anaphora.values import AnyTool, Ttl
from anaphora.wire.alternating import alternating_runs, mark_places, settled_chunks
from anaphora.wire.markers import nearest_ttls
from anaphora.wire.marks import Marking, MarkPlaces, locate
from anaphora.wire.parts import system_blocks_of
from anaphora.wire.rendering import (
    cacheable_count,
    finish_rendering,
    section_run,
    usable_previous,
    without_foreign_tools,
)

from . import params
from .params import markers_of, places_of
from .parts import AFTER_BLOCK, form_of, splice_at, system_log, tool_log
from .types import MEMO, WIRE

#: The bytes before and after the tools, which the envelope begins, and the system blocks.
TOOLS = b'"tools":['
CLOSE_TOOLS = b"]},"
TOOLS_PLACE = "toolConfig.tools"
SYSTEM = b'"system":['
CLOSE_SYSTEM = b"],"

#: Used if the model takes no markers: none is sent.
_ANY_TTL: dict[Ttl, Ttl] = {ttl: ttl for ttl in ("5m", "30m", "1h", "12h", "24h")}


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of the turn before in `previous`, only what was added is rendered; the result
    is the same either way. `previous` may also be an older turn, another branch, or another
    conversation: equal messages are shared.
    """
    previous = usable_previous(previous, WIRE, call.model)
    places, markers = places_of(profile), markers_of(profile)
    tools, notices = without_foreign_tools(call.tools, (WIRE,))
    status = "result_status" not in params.refusals_of(profile)
    blank = params.takes_blank_text(profile)
    form = form_of(places, status=status, blank=blank, as_sent=profile.as_sent)
    last = previous.envelope if previous is not None else None
    envelope = params.envelope(call, profile, last, tools=bool(tools))
    runs: list[ChunkRun] = []
    if tools:
        runs.append(_tools_run(tools, previous, splice_at("tools", places)))
    if blocks := system_blocks_of(call, profile):
        splice = splice_at("system", places)
        log = partial(system_log, splice=splice)
        run = section_run(
            "system", blocks, log, previous, MEMO, lead=SYSTEM, close=CLOSE_SYSTEM, variant=splice
        )
        runs.append(run)
    messages, message_notices = alternating_runs(form, call, profile, previous)
    runs += messages
    mark_at = MarkPlaces(
        partial(mark_places, form=form, profile=profile),
        refusal="" if markers else f"{call.model} takes no cache points",
        tools=tools,
        end=AFTER_BLOCK,
    )
    locate_mark = partial(locate, call=call, profile=profile, runs=runs, places=mark_at)
    nearest = nearest_ttls(markers) or _ANY_TTL
    return finish_rendering(
        call,
        profile,
        envelope,
        runs,
        Marking(markers, nearest, locate_mark, params.MARKERS),
        wire=WIRE,
        cacheable=min(
            cacheable_count(runs, previous, call.ir.cache.messages), settled_chunks(form, runs)
        ),
        notices=[*notices, *message_notices],
    )


def _tools_run(
    tools: tuple[AnyTool, ...], previous: Rendered | None, splice: int | None
) -> ChunkRun:
    return section_run(
        "tools",
        tools,
        partial(tool_log, splice=splice),
        previous,
        MEMO,
        lead=TOOLS,
        close=CLOSE_TOOLS,
        place=TOOLS_PLACE,
        variant=splice,
    )
