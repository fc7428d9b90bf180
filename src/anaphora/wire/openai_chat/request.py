"""A call as a Chat Completions request: system, tools and messages, as they are hashed.

In the body the tools stand first, and the system message leads the list of messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import ChunkLog, ChunkRun, LogAppend, Rendered
from anaphora.values import AnyTool, CachePolicy, Message, Notice, Ttl
from anaphora.wire.foreign import foreign_sections
from anaphora.wire.markers import message_ttl, policy_notices, resolve_marks
from anaphora.wire.openai_cache import ONLY_MARKS, key_place, options_free
from anaphora.wire.openai_system import changed_role, place_of, role_of
from anaphora.wire.rendering import (
    cacheable_count,
    extend_log,
    previous_run,
    render_items,
    without_foreign_tools,
)
from anaphora.wire.shared import SharedLogs

from . import params
from .facts import BY_ITSELF, Facts, facts_of
from .marks import locate
from .messages import BEFORE_BRACE, add_messages, close, glue
from .parts import WIRE, text_part
from .tools import tool_definition

_tool_logs = SharedLogs()
#: Apart by the lifetimes that markers may have: none means that nothing is marked.
_system_logs: dict[tuple[Ttl, ...], SharedLogs] = defaultdict(SharedLogs)


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of the turn before in `previous`, only what was added is rendered; the
    result is the same either way. `previous` may also be an older turn, another branch, or
    another conversation: what agrees is shared. `markers` are those of a dialect.
    """
    facts = facts_of(profile, markers)
    if previous is not None and not _comparable(previous, call.model, facts):
        previous = None
    envelope = params.envelope(
        call, profile, facts, previous.envelope if previous is not None else None
    )
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    messages, notices = _messages(call, facts, previous)
    runs = [
        *_system(call, facts, previous, alone=not messages),
        *_tools(tools, previous),
        *messages,
    ]
    if not runs or (runs[-1].section == "tools" and runs[0].section == "tools"):
        raise InvalidRequest("OpenAI needs at least one message that says something", path="ir")
    marks, frozen, unmarked = resolve_marks(
        call.ir.cache, runs, facts.nearest, lambda asked: locate(asked, call.ir, runs, facts)
    )
    return Rendered(
        wire=WIRE,
        model=call.model,
        runs=tuple(runs),
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        envelope=envelope,
        body_order=_body_order(runs),
        markers=facts.markers,
        request_markers=BY_ITSELF if facts.options else {},
        key_place=key_place(call),
        only_marks=ONLY_MARKS if facts.options and options_free(call) else None,
        marks=marks,
        automatic="30m" if facts.options and call.ir.cache.mode != "explicit" else None,
        frozen=frozen,
        messages_cacheable=call.ir.cache.messages,
        message_ttl=message_ttl(call.ir.cache, facts.nearest, unmarked)
        if facts.breakpoints
        else None,
        bytes_per_token=profile.bytes_per_token.value,
        notices=(
            *envelope.notices,
            *foreign,
            *foreign_sections(call, WIRE),
            *_section_notices(call, facts),
            *notices,
            *unmarked,
        ),
    )


def _comparable(previous: Rendered, model: str, facts: Facts) -> bool:
    """Whether the same messages were said the same way then."""
    source = previous.envelope.source
    same = (previous.wire, previous.model) == (WIRE, model)
    return same and isinstance(source, tuple) and source[0] == facts


def _body_order(runs: list[ChunkRun]) -> tuple[int, ...] | None:
    if [run.section for run in runs[:2]] != ["system", "tools"]:
        return None
    return (1, 0, *range(2, len(runs)))


def _system(call: Call, facts: Facts, previous: Rendered | None, *, alone: bool) -> list[ChunkRun]:
    blocks = call.ir.system_field_blocks()
    if not blocks:
        return []

    def rendered(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
        return _system_log(blocks, facts)

    log = _system_logs[tuple(facts.markers)].get(blocks, previous_run(previous, "system"), rendered)
    role = role_of(place_of(blocks), facts.system_role)
    opening = b'"messages":[{"role":"%b","content":[' % role.encode()
    closing = close(facts.system_role) if alone else b""
    place = "messages[0].content"
    return [
        ChunkRun("system", log, len(log), lead=opening, close=closing, source=blocks, place=place)
    ]


def _system_log(blocks: tuple[PromptBlock, ...], facts: Facts) -> ChunkLog:
    splice = BEFORE_BRACE if facts.breakpoints else None
    said = render_items("system", blocks, lambda block: text_part(block.text, block.extras), splice)
    log = ChunkLog.of(said, [block.label for block in blocks], [b.cache for b in blocks])
    if facts.breakpoints:
        log.policies = tuple(
            (at, facts.nearest[ttl] if ttl is not None else None) for at, ttl in log.policies
        )
    else:
        log.policies = ()
    return log


def _tools(tools: tuple[AnyTool, ...], previous: Rendered | None) -> list[ChunkRun]:
    if not tools:
        return []
    log = _tool_logs.get(tools, previous_run(previous, "tools"), _tool_log)
    return [ChunkRun("tools", log, len(log), lead=b'"tools":[', close=b"],", source=tools)]


def _tool_log(tools: tuple[AnyTool, ...]) -> ChunkLog:
    # No definition carries a breakpoint, so what tools ask of the cache is left to the messages.
    said = render_items("tools", tools, tool_definition, None)
    return ChunkLog.of(said, [f"tool {t.name}" for t in tools], [CachePolicy.NONE] * len(tools))


def _section_notices(call: Call, facts: Facts) -> list[Notice]:
    """What tools, system blocks and history ask for and do not get."""
    blocks = call.ir.system_field_blocks()
    told = changed_role(place_of(blocks), facts.system_role, "system")
    if not facts.breakpoints:
        # These models cache by themselves: nothing asked for is lost.
        return told
    return told + policy_notices(call.tools, blocks, facts.nearest)


def _messages(
    call: Call, facts: Facts, previous: Rendered | None
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run a segment, glued to the one before it; and what could not be said in them."""
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    after_system = bool(call.ir.system_field_blocks())
    for segment in call.ir.body_runs():
        last = previous_run(previous, "messages", segment.role)
        shared = segment.messages.common_prefix(last.source, ids=True) if last is not None else 0

        def add(
            to: LogAppend,
            new: Sequence[Message],
            last_role: str | None,
            where: str = segment.role.value,
        ) -> None:
            add_messages(to, new, last_role, where, facts)

        log, count = extend_log(segment.messages, last, shared, add)
        notices += [notice for at, notice in log.notices if at < len(segment.messages)]
        if not count:
            continue
        if runs:
            lead, first = glue(runs[-1].last_role), _messages_up_to(runs[-1])
        else:
            lead = glue(facts.system_role) if after_system else b'"messages":['
            first = int(after_system)
        runs.append(
            ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                source=segment.messages,
                first_message=first,
            )
        )
    if runs:
        runs[-1] = msgspec.structs.replace(runs[-1], close=close(runs[-1].last_role))
    return runs, notices


def _messages_up_to(run: ChunkRun) -> int:
    """How many messages of the body there are up to the end of a run."""
    return run.position(run.count - 1)[0] + 1
