"""Renders a call as chunks of an Anthropic Messages request: tools, system and messages, in hash
order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import Call, PromptCachePlan
from anaphora.rendered import ChunkRun, Rendered
from anaphora.values import AnyTool, Notice, Ttl
from anaphora.wire.alternating import alternating_runs, mark_places, settled_chunks
from anaphora.wire.markers import nearest_ttls
from anaphora.wire.marks import Marking, MarkPlaces, locate, supported_ttl
from anaphora.wire.parts import system_blocks_of
from anaphora.wire.rendering import (
    cacheable_count,
    finish_rendering,
    previous_run,
    section_run,
    usable_previous,
    without_foreign_tools,
)

from .params import MARKERS, NEAREST, envelope_of, request_markers
from .parts import (
    FORM,
    SENT_FORM,
    InnerPlaces,
    deferred_tools,
    loaded_tools,
    system_log,
    tool_log,
)
from .types import MEMO, WIRE


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of the turn before in `previous`, only what was added is rendered; the result
    is the same either way. `previous` may also be an older turn, another branch, or another
    conversation: equal messages are shared. `markers` are those of a dialect.
    """
    form = SENT_FORM if profile.as_sent else FORM
    own = markers is None
    markers = MARKERS if markers is None else markers
    nearest = NEAREST if own or not markers else nearest_ttls(markers)
    previous = usable_previous(previous, WIRE, call.model)
    envelope = MEMO.envelope(
        call,
        (call.ir.system_fields_agree(), profile, own),
        previous.envelope if previous is not None else None,
        lambda source: envelope_of(call, profile, source, own),
    )
    runs: list[ChunkRun] = []
    tools, notices = without_foreign_tools(call.tools, (WIRE,))
    if tools:
        runs.append(_tools_run(tools, previous))
    if blocks := system_blocks_of(call, profile):
        lead = b'"system":['
        runs.append(
            section_run("system", blocks, system_log, previous, MEMO, lead=lead, close=b"],")
        )
    messages, message_notices = alternating_runs(form, call, profile, previous)
    runs += messages
    notices = [*notices, *message_notices]
    plan = call.ir.cache
    places = MarkPlaces(
        partial(mark_places, form=form, profile=profile),
        refusal="" if markers else "this provider takes no markers",
        tools=loaded_tools(tools),
        nested=InnerPlaces(profile.as_sent).bytes_after_marker,
    )
    locate_mark = partial(locate, call=call, profile=profile, runs=runs, places=places)
    return finish_rendering(
        call,
        profile,
        envelope,
        runs,
        Marking(markers, nearest, locate_mark, MARKERS),
        wire=WIRE,
        cacheable=min(cacheable_count(runs, previous, plan.messages), settled_chunks(form, runs)),
        automatic=_automatic(plan, nearest, own, [] if profile.as_sent else notices),
        notices=notices,
        request_markers=request_markers(call, markers) if own else {},
    )


def _tools_run(tools: tuple[AnyTool, ...], previous: Rendered | None) -> ChunkRun:
    last = previous_run(previous, "tools")
    if last is not None and last.source is tools:
        return last
    loaded, lead = loaded_tools(tools), b'"tools":['
    run = section_run("tools", loaded, tool_log, previous, MEMO, lead=lead, close=b"],")
    if loaded is tools and not run.deferred:
        return run
    if run.deferred and run.source == tools:
        return run  # the last turn's
    deferred = () if loaded is tools else deferred_tools(tools)
    kept = {id(tool) for tool in loaded}
    paths = tuple(f"tools[{index}]" for index, tool in enumerate(tools) if id(tool) in kept)
    return msgspec.structs.replace(run, source=tools, deferred=deferred, paths=paths)


def _automatic(
    plan: PromptCachePlan, nearest: Mapping[Ttl, Ttl], own: bool, notices: list[Notice]
) -> Ttl | None:
    """The TTL of the automatic breakpoint, which only Anthropic is known to place. In explicit mode
    there is none: the TTL is that of the caller's own breakpoints."""
    if plan.automatic is None or plan.mode == "explicit":
        return None
    if own:
        return supported_ttl(plan.automatic, nearest, "cache.automatic", notices)
    reason = "this provider places no breakpoint by itself; left out"
    notices.append(Notice("cache_option_left_out", reason, "cache.automatic"))
    return None
