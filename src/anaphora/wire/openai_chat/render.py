"""Renders a call as a Chat Completions request: system, tools and messages, in hash order.

In the body the tools come first, and the system message leads the list of messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import ChunkRun, Rendered
from anaphora.values import (
    Tool,
    Ttl,
)
from anaphora.wire.markers import ONLY_MARKS, policy_notices
from anaphora.wire.message_runs import message_runs
from anaphora.wire.openai import (
    block_log,
    body_order,
    key_slot,
    locate,
    message_members,
    options_free,
    place_of,
    tool_log,
)
from anaphora.wire.parts import (
    inner_and_outer,
)
from anaphora.wire.reading import encode_members
from anaphora.wire.rendering import (
    cacheable_count,
    finish_rendering,
    section_run,
    usable_previous,
    without_foreign_tools,
)

from .messages import Notices, add_messages, close, glue, mark_places, text_part
from .params import Traits, envelope, traits_of
from .types import (
    AUTOMATIC,
    MEMO,
    WIRE,
)


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of an earlier turn in `previous`, only the difference is rendered; the result
    is the same either way. `markers` are those of a dialect.
    """
    traits = traits_of(profile, markers)
    previous = usable_previous(previous, WIRE, call.model)
    if previous is not None and previous.envelope.source[0] != traits:
        previous = None
    request = envelope(call, profile, traits, previous.envelope if previous is not None else None)
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    blocks = call.ir.system_field_blocks()
    messages, notices = message_runs(
        call.ir.body_runs(),
        previous,
        lambda segment: partial(add_messages, where=segment.role.value, traits=traits),
        opening=glue(traits.system_roles.default) if blocks else b'"messages":[',
        glue=glue,
        close=close,
        first_message=1 if blocks else 0,
    )
    runs: list[ChunkRun] = []
    if blocks:
        runs.append(_system_run(blocks, traits, previous, alone=not messages))
    if tools:
        log, lead = partial(tool_log, encode=_tool_definition), b'"tools":['
        runs.append(section_run("tools", tools, log, previous, MEMO, lead=lead, close=b"],"))
    if not blocks and not messages:
        raise InvalidRequest("OpenAI needs at least one message with content", path="ir")
    runs += messages
    return finish_rendering(
        call,
        profile,
        request,
        runs,
        wire=WIRE,
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        markers=traits.markers,
        nearest=traits.nearest,
        locate=lambda mark: locate(
            mark, call, runs, lambda m: mark_places(m, traits), explicit=traits.breakpoints
        ),
        notices=(*foreign, *_section_notices(call, blocks, traits), *notices),
        body_order=body_order(runs),
        request_markers=AUTOMATIC if traits.options else {},
        key_place=key_slot(call),
        only_marks=ONLY_MARKS if traits.options and options_free(call) else None,
        automatic="30m" if traits.options and call.ir.cache.mode != "explicit" else None,
    )


def _system_run(
    blocks: tuple[PromptBlock, ...], traits: Traits, previous: Rendered | None, *, alone: bool
) -> ChunkRun:
    nearest = traits.nearest if traits.breakpoints else None
    role = traits.system_roles.write(place_of(blocks)).encode()
    members = message_members(blocks)
    fields = encode_members(members)[1:-1] + b"," if members else b""
    return section_run(
        "system",
        blocks,
        lambda blocks: block_log(blocks, text_part, nearest),
        previous,
        MEMO,
        lead=b'"messages":[{"role":"%b",%b"content":[' % (role, fields),
        close=close(traits.system_roles.default) if alone else b"",
        place="messages[0].content",
        variant=tuple(traits.markers),
    )


def _tool_definition(tool: Tool, members: bytes) -> bytes:
    inner, outer = inner_and_outer(tool.extras, WIRE, "function")
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    return b'{"type":"function","function":{%b%b%b}%b}' % (members, strict, inner, outer)


def _section_notices(call: Call, blocks: Sequence[PromptBlock], traits: Traits) -> Notices:
    notices = traits.system_roles.notices(place_of(blocks), "system")
    if not traits.breakpoints:
        return notices  # these models cache by themselves: no policy is lost
    return notices + policy_notices(call.tools, blocks, traits.nearest)
