"""A call as chunks of an Anthropic Messages request: tools, system and messages, in hash order.

Messages alternate, so neighbours of one role become one message. A block's glue leads it and
depends only on the role before it: that makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import (
    AnyTool,
    Conversation,
    Document,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    ProviderTool,
    ResultPart,
    Role,
    SegmentRole,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
)
from anaphora.wire.markers import nearest_ttls, supported_ttl
from anaphora.wire.parts import (
    UNFINISHED_REASONING,
    ReasoningFollowed,
    has_extras,
    note_foreign_fields,
    notices_below,
)
from anaphora.wire.rendering import (
    cacheable_count,
    extend_log,
    finish_rendering,
    previous_run,
    render_items,
    section_run,
    usable_previous,
    without_foreign_tools,
)

from .markers import MARKERS, NEAREST, locate
from .params import envelope_of
from .parts import (
    BEFORE_BRACE,
    TEXT,
    UNSIGNED,
    closing,
    encoder_for,
    is_fields,
    is_sent,
    is_unsigned,
    nested_splice,
    text_block,
)
from .types import MEMO, WIRE

Notices: TypeAlias = list[Notice]

# Looked up once: access to an enum member is slow, and every turn needs it.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION
_TEXT_KIND = Kind.TEXT

_ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}
_OPEN = {
    role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant", "system")
}
_NEXT = {role: b"]}," + opening for role, opening in _OPEN.items()}
WIRE_ROLES = frozenset(_OPEN)
CLOSE = b"]}]"

_STRIPS_THINKING = Notice(
    "state_strips_thinking",
    "the state cannot be put into a tool result, and as a user block it makes this model drop its"
    " earlier thinking, which voids the cached messages",
)


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
    own = markers is None
    markers = MARKERS if markers is None else markers
    nearest = NEAREST if own or not markers else nearest_ttls(markers)
    previous = usable_previous(previous, WIRE, call.model)
    envelope = envelope_of(call, profile, previous.envelope if previous is not None else None)
    runs: list[ChunkRun] = []
    tools, notices = without_foreign_tools(call.tools, (WIRE,))
    if tools:
        run = section_run("tools", tools, _tools, previous, MEMO, lead=b'"tools":[', close=b"],")
        runs.append(run)
    if blocks := call.ir.system_field_blocks():
        run = section_run(
            "system", blocks, _system, previous, MEMO, lead=b'"system":[', close=b"],"
        )
        runs.append(run)
    messages, message_notices = _messages(call, profile, previous)
    runs += messages
    notices = [*notices, *message_notices]
    plan = call.ir.cache

    def sent_parts(message: Message) -> list[bool]:
        assistant = message.role == "assistant"
        return [
            is_sent(part, assistant) and not is_unsigned(part, profile) for part in message.parts
        ]

    return finish_rendering(
        call,
        profile,
        envelope,
        runs,
        wire=WIRE,
        cacheable=min(cacheable_count(runs, previous, plan.messages), _settled_chunks(runs)),
        markers=markers,
        nearest=nearest,
        locate=lambda request: (
            locate(request, call, tools, runs, sent_parts, nested_splice)
            if markers
            else "this provider takes no markers"
        ),
        automatic=_automatic(plan, nearest, own, notices),
        notices=notices,
        request_markers=markers if own else {},
        binds_thinking=True,
    )


def _automatic(
    plan: PromptCachePlan, nearest: Mapping[Ttl, Ttl], own: bool, notices: Notices
) -> Ttl | None:
    """The TTL of the breakpoint that Anthropic places by itself; no other provider is known to. In
    explicit mode there is none: the TTL is that of the caller's own breakpoints."""
    if plan.automatic is None or plan.mode == "explicit":
        return None
    if own:
        return supported_ttl(plan.automatic, nearest, "cache.automatic", notices)
    reason = "this provider places no breakpoint by itself; left out"
    notices.append(Notice("cache_option_left_out", reason, "cache.automatic"))
    return None


# ── Tools and system blocks ──────────────────────────────────────────────────────────────────────


def _tools(tools: tuple[AnyTool, ...]) -> ChunkLog:
    blocks = render_items("tools", tools, _tool, BEFORE_BRACE)
    return ChunkLog.of(blocks, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def _system(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    texts = render_items("system", blocks, lambda b: text_block(b.text, b.extras), BEFORE_BRACE)
    return ChunkLog.of(texts, [block.label for block in blocks], [b.cache for b in blocks])


def _tool(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = check_object(tool.schema, path="schema").encode()
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    name = b'{"name":' + string(tool.name)
    return name + description + b',"input_schema":' + schema + strict + closing(tool.extras)


# ── Roles and glue ───────────────────────────────────────────────────────────────────────────────


class RoleWithFields(str):
    """The role of a message with unknown fields. It is a message of its own: neighbours of the same
    role are not merged with it."""

    __slots__ = ("fields",)
    fields: bytes

    def __new__(cls, role: str, fields: bytes) -> RoleWithFields:
        made = super().__new__(cls, role)
        made.fields = fields
        return made


def opening(role: str) -> bytes:
    """A message up to its first block."""
    if isinstance(role, RoleWithFields):
        return b'{"role":"%b",%b,"content":[' % (role.encode(), role.fields)
    return _OPEN[role]


def glue(role: str, last: str | None) -> bytes:
    """What stands before a message's first block, behind a message of role `last`."""
    if last is None:
        return b""
    if joins(role, last):
        return b","
    return b"]}," + opening(role) if isinstance(role, RoleWithFields) else _NEXT[role]


def joins(role: str, last: str | None) -> bool:
    """Whether a message is merged into the one before it."""
    return role == last and type(role) is str and type(last) is str


# ── Message runs ─────────────────────────────────────────────────────────────────────────────────


def _messages(
    call: Call, profile: Profile, previous: Rendered | None
) -> tuple[list[ChunkRun], Notices]:
    """One run per segment, glued to the one before it."""
    segments = call.ir.body_runs()
    final = len(segments) - 1
    runs: list[ChunkRun] = []
    notices: Notices = []
    for index, segment in enumerate(segments):
        if segment.role is _TAIL:
            segment, runs, notice = _place_tail(segment, runs, call.params, profile)
            notices += [notice] if notice else []
        before, after = runs[-1].last_role if runs else None, _role_after(segments, index)
        last = previous_run(previous, "messages", segment.role)
        log, count = _segment_log(segment, profile, last, before, after)
        if log.notices:
            notices += [notice for at, notice in log.notices if at < len(segment.messages)]
        if count:
            lead, message, block = _joint(runs[-1] if runs else None, before, log.roles[0])
            run = ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                close=CLOSE if index == final else b"",
                source=segment.messages,
                first_message=message,
                first_block=block,
                before=before,
                after=after,
            )
            runs.append(run)
    if not runs:
        raise InvalidRequest("Anthropic needs at least one message with content", path="ir")
    if not runs[-1].close:  # the last segment had no chunks
        runs[-1] = msgspec.structs.replace(runs[-1], close=CLOSE)
    return runs, notices


def _joint(last: ChunkRun | None, before: str | None, role: str) -> tuple[bytes, int, int]:
    """The glue between two runs, and where the second begins: message on the wire, block in it."""
    if last is None:
        return b'"messages":[' + opening(role), 0, 0
    message, block = last.position(last.count - 1)
    if joins(role, before):
        return b",", message, block + 1
    return glue(role, before), message + 1, 0


def _segment_log(
    segment: Segment, profile: Profile, last: ChunkRun | None, before: str | None, after: str | None
) -> tuple[ChunkLog, int]:
    messages = segment.messages

    def add(append: LogAppend, new: Sequence[Message], last_role: str | None) -> None:
        _MessageRenderer(append, new, segment.role.value, before, after, profile).run(last_role)

    shared = 0
    if last is not None:
        shared = messages.common_prefix(last.source, ids=True)
        if last.log.contextual:
            shared = _unmoved(messages, shared, last, before, after)
    return extend_log(messages, last, shared, add)


def _settled_chunks(runs: list[ChunkRun]) -> int:
    """The chunks before a system message that ends the conversation: until the assistant answers
    it, what follows may still change its role."""
    first = 0
    for run in runs:
        if run.role is _HISTORY and run.log.contextual:
            start = _undecided(run.source, len(run.source))
            decided = run.log.message_ends[start - 1] if start else 0
            if start < len(run.source) and decided < run.count:
                return first + decided
        first += run.count
    return first


def _undecided(messages: Conversation, end: int) -> int:
    """Back over system messages, and those without content, to where their role is decided."""
    while end and (messages[end - 1].role == "system" or not _has_content(messages[end - 1])):
        end -= 1
    return end


def _unmoved(
    messages: Conversation, shared: int, last: ChunkRun, before: str | None, after: str | None
) -> int:
    """How many of the shared messages may keep their bytes: the role of a system message depends
    on its neighbours."""
    if (last.before, last.after) != (before, after):
        return 0
    start = _undecided(messages, shared)
    same = _answered(messages, start, after) == _answered(last.source, start, after)
    return shared if same else start


def _answered(messages: Sequence[Message], index: int, after: str | None) -> bool:
    """Whether the assistant is next, past any system messages, or no message follows."""
    while index < len(messages):
        message = messages[index]
        if message.role != "system" and _has_content(message):
            return message.role == "assistant"
        index += 1
    return after in (None, "assistant")


def _role_after(segments: tuple[Segment, ...], index: int) -> str | None:
    """The role of the next message with content after a segment. After the conversation it is the
    reply to come, or the dynamic context that was moved behind it; the volatile tail is placed
    separately."""
    for following in segments[index + 1 :]:
        if segments[index].role is _HISTORY and following.role is not _DYNAMIC:
            break
        for message in following.messages:
            if _has_content(message):
                return message.role
    return None


# ── The volatile tail ────────────────────────────────────────────────────────────────────────────


def _place_tail(
    tail: Segment, runs: list[ChunkRun], params: Params, profile: Profile
) -> tuple[Segment, list[ChunkRun], Notice | None]:
    """The tail as it is rendered behind these runs, and the runs that stay before it.

    Some models drop all earlier thinking at a plain user block, which voids every cached message.
    Inside a tool loop the state is then put into the last tool result, or sent as a system message
    where the model takes one there.
    """
    if not runs or runs[-1].role is not _HISTORY:
        return tail, runs, None
    # A user message may not follow a system message inside the history.
    if runs[-1].last_role != "system":
        if not _would_strip_thinking(runs[-1], params, profile):
            return tail, runs, None
        if not profile.mid_conversation_system.value:
            return _into_result(tail, runs)
    messages = (Message(id=m.id, role="system", parts=m.parts) for m in tail.messages)
    return Segment(tail.role, Conversation(messages)), runs, None


def _would_strip_thinking(last: ChunkRun, params: Params, profile: Profile) -> bool:
    reasoning = params.reasoning
    if reasoning is None or reasoning.mode in (None, "disabled"):
        return False
    in_loop = last.log.kinds[last.count - 1] is Kind.TOOL_RESULT
    return in_loop and profile.strips_thinking.value


def _into_result(
    tail: Segment, runs: list[ChunkRun]
) -> tuple[Segment, list[ChunkRun], Notice | None]:
    """The last tool result leaves the conversation's run and takes the state in for this one turn;
    next turn it is rendered without it again."""
    last = runs[-1]
    carrier = last.source[last.log.message_of(last.count - 1)]
    result = next(part for part in reversed(carrier.parts) if isinstance(part, ToolResult))
    state: list[ResultPart] = []
    for message in tail.messages:
        for part in message.parts:
            if not isinstance(part, Text | Image | Document):
                return tail, runs, _STRIPS_THINKING
            state.append(part)
    own = result.content
    if isinstance(own, str):
        own = (Text(own),) if own else ()
    combined = msgspec.structs.replace(result, content=(*own, *state))
    message = Message(id=tail.messages[0].id, role="tool", parts=(combined,))
    before = [msgspec.structs.replace(last, count=last.count - 1)] if last.count > 1 else []
    return Segment(tail.role, Conversation([message])), [*runs[:-1], *before], None


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


class _MessageRenderer:
    """Renders messages of one segment as chunks. `before` is the wire role before the run, `after`
    the role after it."""

    __slots__ = ("after", "append", "before", "followed", "messages", "profile", "segment")

    def __init__(
        self,
        append: LogAppend,
        messages: Sequence[Message],
        segment: str,
        before: str | None,
        after: str | None,
        profile: Profile,
    ) -> None:
        self.append = append
        self.messages = messages
        self.segment = segment
        self.before = before
        self.after = after
        self.profile = profile
        self.followed: ReasoningFollowed | None = None

    @property
    def place(self) -> str:
        """The message that is being rendered, for errors and notices."""
        return f"{self.segment}[{self.append.message}]"

    def run(self, last_role: str | None) -> None:
        """Adds all messages. `last_role` is the wire role the log ends with; None: it is empty, and
        its first chunk has no glue."""
        append, chunk = self.append, self.append.chunk
        block: bytes | None
        splice: int | None
        for index, message in enumerate(self.messages):
            parts, part, foreign = message.parts, 0, False
            role = _ROLES.get(message.role) or self._system_role(index, last_role)
            if parts and type(parts[-1]) is Opaque and is_fields(parts[-1]):
                role = self._role_with_fields(message, role)
            if type(role) is str and type(last_role) is str:  # nearly always: without calls
                opens = role != last_role
                lead = _NEXT[role] if opens else b","
            else:
                opens, lead = not joins(role, last_role), glue(role, last_role)
            try:
                for part, value in enumerate(parts):
                    if (
                        type(value) is Text
                        and value.extras is None
                        and (text := value.text)
                        and not text.isspace()
                    ):
                        # Most parts are of this kind: the shortest way.
                        kind, splice = _TEXT_KIND, BEFORE_BRACE
                        block = lead + TEXT + string(text) + b"}"
                    else:
                        foreign = foreign or has_extras(value)
                        kind, splice, block = self._block(index, part, role == "assistant")
                        if block is None:
                            continue
                        block = lead + block
                    if opens:
                        append.open(role)
                        last_role, opens = role, False
                    chunk(kind, block, splice)
                    lead = b","
            except InvalidRequest as problem:
                raise problem.within(f"{self.place}.parts[{part}]") from None
            if foreign:
                note_foreign_fields(append, message, WIRE, self.place)
            if opens and isinstance(role, RoleWithFields):
                append.notice(_fields_left_out("a message without content", self.place))
            if not parts:
                reason = "a message without parts is left out"
                append.notice(Notice("empty_message", reason, self.place))
            append.end_message(message.id)

    def _block(
        self, index: int, part: int, assistant: bool
    ) -> tuple[Kind, int | None, bytes | None]:
        """The block of one part; None where it is left out, with notices."""
        value = self.messages[index].parts[part]
        kind, splice, encode = encoder_for(value, assistant)
        notices: Notices = []
        block = encode(value, notices)
        if assistant and type(value) is not ToolCall and block is not None:
            left_out = self._left_out(index, part)
            if left_out is not None:
                notices.append(left_out)
                block = None
        if notices:
            for notice in notices_below(notices, f"{self.place}.parts[{part}]"):
                self.append.notice(notice)
        return kind, splice, block

    def _left_out(self, index: int, part: int) -> Notice | None:
        """Why reasoning, or white space behind it, is not sent back; None where it is sent."""
        message = self.messages[index]
        value = message.parts[part]
        if not isinstance(value, Thinking) and not (_is_blank(value) and _only_reasoning(message)):
            return None
        if self.followed is None:
            self.followed = ReasoningFollowed(self.messages, _may_follow)
        if not self.followed(index, part):
            return UNFINISHED_REASONING
        return UNSIGNED if is_unsigned(value, self.profile) else None

    def _role_with_fields(self, message: Message, role: str) -> str:
        """The role of a message with unknown fields. A system message that is sent as user text
        goes without them."""
        part = message.parts[-1]
        assert isinstance(part, Opaque)
        path = f"{self.place}.parts[{len(message.parts) - 1}].json"
        members = check_object(part.json, path=path).strip()[1:-1].strip().encode()
        if message.role == "system" and role != "system":
            whose = "a system message that is sent as user text"
            self.append.notice(_fields_left_out(whose, self.place))
            return role
        return RoleWithFields(role, members) if members else role

    def _system_role(self, index: int, last_role: str | None) -> str:
        """A system message inside the history stays one where the model takes it there: behind a
        user turn, and before an assistant turn or at the end."""
        if (role := self.messages[index].role) != "system":
            reason = f"{role!r} is not a role; use system, user, assistant or tool"
            raise InvalidRequest(reason, path=f"{self.place}.role")
        self.append.contextual = True
        if (
            self.profile.mid_conversation_system.value
            and (last_role or self.before) in ("user", "system")
            and _answered(self.messages, index + 1, self.after)
        ):
            return "system"
        reason = "a system message cannot stand here on this model, so it is sent as user text"
        self.append.notice(Notice("system_as_user", reason, self.place))
        return "user"


def _has_content(message: Message) -> bool:
    """Whether anything of a message reaches the wire. Reasoning alone does not."""
    assistant = message.role == "assistant"
    if assistant and _only_reasoning(message):
        return False
    return any(is_sent(part, assistant) for part in message.parts)


def _only_reasoning(message: Message) -> bool:
    """Whether a message is reasoning, and white space behind it at most."""
    return any(isinstance(part, Thinking) for part in message.parts) and all(
        isinstance(part, Thinking) or _is_blank(part) for part in message.parts
    )


def _is_blank(part: Part) -> bool:
    return isinstance(part, Text) and not part.text.strip()


def _may_follow(part: Part, role: Role) -> bool | None:
    """Whether a part may follow reasoning; None where it does not reach the wire."""
    assistant = role == "assistant"
    if assistant and _is_blank(part):
        return None
    if isinstance(part, ToolCall | ToolResult) or (isinstance(part, Text) and part.text.strip()):
        return assistant  # known without encoding it
    try:
        return assistant if is_sent(part, assistant) else None
    except InvalidRequest:
        return assistant  # raised again where it is rendered, with its path


def _fields_left_out(whose: str, place: str) -> Notice:
    return Notice("fields_left_out", f"the fields of {whose} are left out", place)
