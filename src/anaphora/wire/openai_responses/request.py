"""A call as a Responses request: system text, tools and input, as they are hashed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import (
    AnyTool,
    CachePolicy,
    Conversation,
    Message,
    Notice,
    ProviderTool,
    Section,
    SegmentRole,
    Text,
    Ttl,
)
from anaphora.wire.foreign import foreign_sections
from anaphora.wire.markers import message_ttl, policy_notices, resolve_marks
from anaphora.wire.openai_cache import ONLY_MARKS, key_place, options_free
from anaphora.wire.openai_system import place_of, role_of
from anaphora.wire.rendering import (
    cacheable_count,
    extend_log,
    previous_run,
    render_items,
    without_foreign_tools,
)
from anaphora.wire.shared import SharedLogs

from . import params
from .content import ITEM, WIRE, closing, input_text, members
from .items import CLOSE_ITEM, CLOSED, glue, message_opening
from .marks import locate
from .messages import add_messages
from .traits import Traits, in_slot, traits

MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}
#: The provider's own breakpoint needs no asking for; its TTL is among the request's options.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b"", "12h": b""}

TOOLS = b',"tools":['
INPUT = b',"input":['
INSTRUCTIONS = b',"instructions":'
CLOSE_INPUT = b"]"

_OWN = ("openai", WIRE)

_tool_logs = SharedLogs()
_instruction_logs = SharedLogs()
_block_logs = {explicit: SharedLogs() for explicit in (False, True)}

T = TypeVar("T")


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks, unmarked. What a stored response holds is among them, and is
    left out of the body.

    With the rendering of the turn before in `previous`, only what was added is rendered; the
    result is the same either way.
    """
    model = in_slot(traits(profile), place_of(call.ir.system_field_blocks()).slot)
    if previous is not None and not _comparable(previous, call, model):
        previous = None
    last = previous.envelope if previous is not None else None
    envelope = params.envelope(call, profile, model, last)
    tools, foreign = without_foreign_tools(call.tools, _OWN)
    system = _system(call.ir, model, previous)
    listed = [_section("tools", tools, _tool_logs, _tools, previous, TOOLS, b"]")] if tools else []
    held, sent = _messages(call, model, previous, bool(system))
    leads = model.system_slot == "message"
    if leads and system and not held and not sent:
        system = [msgspec.structs.replace(system[0], close=CLOSE_ITEM + CLOSE_INPUT)]
    # A system message is hashed before the tools, stands behind them, and may be held already.
    before = [*listed, *([] if held else system)] if leads else [*system, *listed]
    _check_not_empty(call, sent or (leads and system))
    runs = [*system, *listed, *held, *sent]
    unsent = [*(system if leads else []), *held] if held else []
    cache = call.ir.cache
    marks, frozen, unmarked = resolve_marks(
        cache, runs, params.TTLS, lambda asked: locate(asked, call, runs, model, unsent)
    )
    # What is sent behind a stored response is found in it next turn, joined otherwise.
    fresh = sent[0] if sent and params.continues(call) else None
    return Rendered(
        wire=WIRE,
        model=call.model,
        runs=tuple(runs),
        cacheable=cacheable_count(runs, previous, cache.messages, fresh),
        envelope=envelope,
        body_order=_order([*before, *sent], runs),
        markers=MARKERS if model.explicit else {},
        request_markers=AUTOMATIC if model.explicit else {},
        key_place=key_place(call),
        only_marks=ONLY_MARKS if model.explicit and options_free(call) else None,
        marks=marks,
        automatic=_automatic(call, model),
        frozen=frozen,
        messages_cacheable=cache.messages,
        message_ttl=message_ttl(cache, params.TTLS, unmarked) if model.explicit else None,
        bytes_per_token=profile.bytes_per_token.value,
        notices=(
            *envelope.notices,
            *foreign,
            *foreign_sections(call, WIRE),
            *(notice for run in runs for notice in run.notices()),
            *_policy_notices(call, model),
            *unmarked,
        ),
    )


def _policy_notices(call: Call, model: Traits) -> list[Notice]:
    """What blocks and tools ask of the cache and do not get. Models without breakpoints cache by
    themselves: nothing is lost there."""
    if not model.explicit:
        return []
    return policy_notices(call.tools, call.ir.system_field_blocks(), params.TTLS)


def _order(body: list[ChunkRun], runs: list[ChunkRun]) -> tuple[int, ...] | None:
    """Where the runs of the body stand in hash order; None when that is the body's order too."""
    order = tuple(next(at for at, run in enumerate(runs) if run is said) for said in body)
    return None if order == tuple(range(len(runs))) else order


def _comparable(previous: Rendered, call: Call, model: Traits) -> bool:
    """Whether a rendering was made for the same model, as far as bytes can tell."""
    source = previous.envelope.source
    return (previous.wire, previous.model) == (WIRE, call.model) and (
        source is not None and source[0] == model
    )


def _automatic(call: Call, model: Traits) -> Ttl | None:
    """The provider places one breakpoint by itself unless told not to."""
    if not model.explicit or call.ir.cache.mode == "explicit":
        return None
    return params.TTLS[call.ir.cache.automatic or "30m"]


def _section(
    section: Section,
    source: T,
    shared: SharedLogs,
    render: Callable[[T], ChunkLog],
    previous: Rendered | None,
    lead: bytes,
    close: bytes,
    place: str = "",
) -> ChunkRun:
    last = previous_run(previous, section)
    log = shared.get(source, last, render)
    if last is not None and (last.log, last.lead, last.close) == (log, lead, close):
        return last
    return ChunkRun(section, log, len(log), lead=lead, close=close, source=source, place=place)


def _system(ir: PromptIR, model: Traits, previous: Rendered | None) -> list[ChunkRun]:
    if model.system_slot != "message":
        text = ir.system_field()
        if place_of(ir.system_field_blocks()).slot is None:
            text = text.strip()
        if not text.strip():
            return []
        logs, say = _instruction_logs, _instructions
        return [_section("system", text, logs, say, previous, INSTRUCTIONS, b"", "instructions")]
    blocks = ir.system_field_blocks()
    if not blocks:
        return []
    # The fields of the message itself, where it was read from a request.
    role = role_of(place_of(blocks), model.system_role)
    lead = INPUT + message_opening(role, members(blocks[0].extras, ITEM))

    def render(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
        return _blocks(blocks, model)

    logs = _block_logs[model.explicit]
    return [_section("system", blocks, logs, render, previous, lead, b"", "input[0].content")]


def _instructions(text: str) -> ChunkLog:
    out = LogAppend()
    out.chunk(Kind.SYSTEM, string(text), None)
    return ChunkLog.of(out, ["instructions"], [CachePolicy.NONE])


def _blocks(blocks: tuple[PromptBlock, ...], model: Traits) -> ChunkLog:
    splice = -1 if model.explicit else None
    texts = render_items(
        "system", blocks, lambda b: input_text(Text(b.text, b.extras), []) or b"", splice
    )
    log = ChunkLog.of(texts, [block.label for block in blocks], [b.cache for b in blocks])
    if model.explicit:
        log.policies = tuple(
            (at, params.TTLS[ttl] if ttl is not None else None) for at, ttl in log.policies
        )
    else:
        log.policies = ()
    return log


def _tools(tools: tuple[AnyTool, ...]) -> ChunkLog:
    said = render_items("tools", tools, _tool, None)
    names = [f"tool {tool.name}" for tool in tools]
    # No tool carries a breakpoint, so what they ask of the cache is for the input to keep.
    return ChunkLog.of(said, names, [CachePolicy.NONE] * len(tools))


def _tool(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = check_object(tool.schema, path="schema").encode()
    return (
        b'{"type":"function","name":'
        + string(tool.name)
        + description
        + b',"parameters":'
        + schema
        + b',"strict":'
        + dumps(tool.strict)
        + closing(tool.extras)
    )


def _messages(
    call: Call, model: Traits, previous: Rendered | None, system: bool
) -> tuple[list[ChunkRun], list[ChunkRun]]:
    """One run a segment, each glued to the one before it: those that a stored response holds, and
    those that are sent."""
    behind = "system" if system and model.system_slot == "message" else None
    if not params.continues(call):
        return [], _joined(call.ir.body_runs(), model, previous, behind)
    kept, new = _continued(call.ir)
    held = _joined(kept, model, previous, behind)
    # The bytes of what is sent begin an input of their own, so nothing is shared with the held.
    return held, _joined(new, model, None, None if held else behind)


def _joined(
    segments: Sequence[Segment], model: Traits, previous: Rendered | None, behind: str | None
) -> list[ChunkRun]:
    """Segments as runs behind a message of that role, or at the beginning of the input."""
    state, message = behind, 1 if behind is not None else 0
    runs: list[ChunkRun] = []
    for segment in segments:
        last = previous_run(previous, "messages", segment.role)
        log, count = _segment_log(segment, model, last)
        if not count:
            continue
        run = ChunkRun(
            "messages",
            log,
            count,
            role=segment.role,
            lead=INPUT if state is None else glue(state),
            source=segment.messages,
            first_message=message,
            place="input",
        )
        runs.append(run)
        state, message = run.last_role, run.position(count - 1)[0] + 1
    if runs:
        end = (b"" if state == CLOSED else CLOSE_ITEM) + CLOSE_INPUT
        runs[-1] = msgspec.structs.replace(runs[-1], close=end)
    return runs


def _continued(ir: PromptIR) -> tuple[list[Segment], list[Segment]]:
    """What the stored response holds of this prompt, and what it has not seen. When the message
    it ended with is unknown, nothing is known to be held."""
    delta, conversation = ir.continuation_delta(), ir.run(SegmentRole.CONVERSATION)
    remainder = len(ir.run(SegmentRole.SYSTEM_REMAINDER))
    dynamic = remainder + len(ir.run(SegmentRole.DYNAMIC_CONTEXT))
    tail = len(delta) - len(ir.run(SegmentRole.VOLATILE_TAIL))
    places = (
        (SegmentRole.SYSTEM_REMAINDER, 0, remainder),
        (SegmentRole.DYNAMIC_CONTEXT, remainder, dynamic),
        (SegmentRole.CONVERSATION, dynamic, tail),
        (SegmentRole.VOLATILE_TAIL, tail, len(delta)),
    )
    new = [Segment(role, Conversation(delta[at:end])) for role, at, end in places if at < end]
    known = len(conversation) - (tail - dynamic)
    if not known:
        return [], new
    stable = Segment(SegmentRole.STABLE_PREFIX, ir.run(SegmentRole.STABLE_PREFIX))
    return [stable, Segment(SegmentRole.CONVERSATION, conversation.prefix(known))], new


def _segment_log(segment: Segment, model: Traits, last: ChunkRun | None) -> tuple[ChunkLog, int]:
    def add(to: LogAppend, new: Sequence[Message], state: str | None) -> None:
        add_messages(to, new, state, segment.role.value, model)

    shared = segment.messages.common_prefix(last.source, ids=True) if last is not None else 0
    return extend_log(segment.messages, last, shared, add)


def _check_not_empty(call: Call, said: object) -> None:
    # A stored prompt or conversation may say it all; they travel as extras.
    if not said and (call.extras is None or WIRE not in call.extras):
        raise InvalidRequest("OpenAI needs at least one message that says something", path="ir")
