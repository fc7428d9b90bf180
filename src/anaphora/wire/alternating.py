"""Messages of alternating roles as lists of blocks, which Anthropic and Converse take: the roles of
system messages, reasoning that is left out, unknown fields of messages, and the volatile tail.

A wire describes its blocks in a `MessageForm`. Neighbouring messages of one role become one. The
glue before a block depends only on the role before it, which makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, Segment
from anaphora.rendered import ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import (
    Conversation,
    Document,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    ResultPart,
    Role,
    SegmentRole,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

from .marks import MarkPlace
from .parts import (
    bare_members,
    has_extras,
    is_fields_part,
    note_foreign_fields,
    notices_below,
    unknown_role,
)
from .rendering import previous_run
from .runs import UNFINISHED_REASONING, ReasoningFollowed, RoleOf, extend_log

#: The block of a part: its kind in the cache rules, the offset of a marker in it, and its bytes.
Block: TypeAlias = tuple[Kind, int | None, bytes]
#: Encodes a part, with notices; None if it is left out.
Encoder: TypeAlias = Callable[[Any, list[Notice]], bytes | None]

# Looked up once: access to an enum member is slow, and every turn needs it.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION

ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}

UNSIGNED = Notice(
    "unsigned_thinking", "reasoning without a signature is refused, so it is left out"
)
_STRIPS_THINKING = Notice(
    "state_strips_thinking",
    "the state cannot be put into a tool result, and as a user block it makes this model drop its"
    " earlier thinking, which voids the cached messages",
)


class MessageForm(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a wire."""

    wire: str
    host: str
    """The provider's name, for errors."""
    fields: str
    """The kind of an opaque part that holds the unknown fields of its message."""
    encoder_for: Callable[[object, bool], tuple[Kind, int | None, Encoder]]
    """The kind of a part's block, its marker's offset, and its encoder. The second argument tells
    whether the part is the assistant's."""
    is_unsigned: Callable[[Part, Profile], bool]
    """Whether reasoning lacks the signature that the model requires."""
    text_beside_results: bool = True
    """Whether a text in a message with tool results takes a marker."""
    as_sent: bool = False
    """Messages stay as another program wrote them."""

    def is_sent(self, part: Part, assistant: bool = False) -> bool:
        """Whether a part becomes a block."""
        return self.encoder_for(part, assistant)[2](part, []) is not None

    def sent_parts(self, message: Message, profile: Profile) -> list[bool]:
        """The parts of a message that become blocks."""
        assistant = message.role == "assistant"
        return [
            self.is_sent(part, assistant) and not self.is_unsigned(part, profile)
            for part in message.parts
        ]


class SegmentEncoder:
    """Adds the messages of a segment to its log. `before` is the wire role before the run, `after`
    the role after it."""

    def __init__(
        self,
        form: MessageForm,
        segment: Segment,
        profile: Profile,
        before: str | None,
        after: str | None,
    ) -> None:
        self.form = form
        self.segment = segment
        self.where = segment.role.value
        self.profile = profile
        self.before = before
        self.after = after

    def add(self, append: LogAppend, new: Sequence[Message], last_role: str | None) -> None:
        """Add messages, which end the segment, after one of that wire role."""
        self.append, self.new = append, new
        self.followed = ReasoningFollowed(new, self._may_follow)
        beside, watch = False, not self.form.text_beside_results
        if watch:
            beside = _ends_with_results(self.segment.messages, append.first_message)
        for index, message in enumerate(new):
            role, blocks = self._encode(index, last_role)
            joined = joins(role, last_role)
            beside = watch and (_has_results(message) or (joined and beside))
            lead = b"" if last_role is None else b"]}," + opening(role)
            if joined:
                lead = b","
            elif blocks:
                append.open(role)
                last_role = role
            for kind, splice, block in blocks:
                append.chunk(kind, lead + block, None if beside else splice)
                lead = b","
            append.end_message(message.id)
        del self.followed  # which refers to this encoder

    @property
    def place(self) -> str:
        """The message that is being rendered, for errors and notices."""
        return f"{self.where}[{self.append.message}]"

    def _encode(self, index: int, last_role: str | None) -> tuple[str, list[Block]]:
        """The wire role of a message, and its blocks; notices are added."""
        append, form, message = self.append, self.form, self.new[index]
        parts = message.parts
        role = ROLES.get(message.role) or self._system_role(index, last_role)
        if (
            parts
            and type(parts[-1]) is Opaque
            and is_fields_part(parts[-1], (form.wire,), form.fields)
        ):
            role = self._role_with_fields(message, role)
        blocks: list[Block] = []
        for part, value in enumerate(parts):
            try:
                blocks += self._block(index, part, value, role == "assistant")
            except InvalidRequest as problem:
                raise problem.within(f"{self.place}.parts[{part}]") from None
        if any(map(has_extras, parts)):
            note_foreign_fields(append, message, form.wire, self.place)
        if form.as_sent:
            # Without blocks it is an empty message of its own.
            return (role, blocks) if blocks else (_own(role), [(Kind.OTHER, None, b"")])
        if not blocks and isinstance(role, RoleOf):
            append.notice(_fields_left_out("a message without content", self.place))
        if not parts:
            reason = "a message without parts is left out"
            append.notice(Notice("empty_message", reason, self.place))
        return role, blocks

    def _block(self, index: int, part: int, value: Part, assistant: bool) -> list[Block]:
        """The block of one part; none if it is left out, with notices."""
        kind, splice, encode = self.form.encoder_for(value, assistant)
        notices: list[Notice] = []
        block = encode(value, notices)
        if block is not None and (left_out := self._left_out(index, part, value)) is not None:
            notices.append(left_out)
            block = None
        if notices:
            for notice in notices_below(notices, f"{self.place}.parts[{part}]"):
                self.append.notice(notice)
        return [] if block is None else [(kind, splice, block)]

    def _left_out(self, index: int, part: int, value: Part) -> Notice | None:
        """Why reasoning, or white space after it, is not sent back; None if it is sent."""
        if self.form.as_sent or not isinstance(value, Text | Thinking):
            return None
        message = self.new[index]
        ends = isinstance(value, Thinking) or (_is_blank(value) and _only_reasoning(message))
        if ends and message.role == "assistant" and not self.followed(index, part):
            return UNFINISHED_REASONING
        return UNSIGNED if self.form.is_unsigned(value, self.profile) else None

    def _role_with_fields(self, message: Message, role: str) -> str:
        """The role of a message with unknown fields. A system message that is sent as user text
        goes without them."""
        fields = message.parts[-1]
        assert isinstance(fields, Opaque)
        path = f"{self.place}.parts[{len(message.parts) - 1}].json"
        members = bare_members(fields.json, path)
        if message.role == "system" and role != "system":
            whose = "a system message that is sent as user text"
            self.append.notice(_fields_left_out(whose, self.place))
            return role
        return RoleOf(role, members) if members else role

    def _system_role(self, index: int, last_role: str | None) -> str:
        """A system message inside the history stays one if the model accepts it there: after a user
        turn, and before an assistant turn or at the end."""
        if (role := self.new[index].role) != "system":
            raise unknown_role(role, f"{self.place}.role")
        if self.form.as_sent:
            return "system"
        self.append.contextual = True
        if (
            self.profile.mid_conversation_system.value
            and (last_role or self.before) in ("user", "system")
            and _assistant_follows(self.form, self.new, index + 1, self.after)
        ):
            return "system"
        reason = "this model accepts no system message here, so it is sent as user text"
        self.append.notice(Notice("system_as_user", reason, self.place))
        return "user"

    def _may_follow(self, part: Part, role: Role) -> bool | None:
        """Whether a part may follow reasoning; None if it does not reach the wire."""
        assistant = role == "assistant"
        if assistant and _is_blank(part):
            return None
        if isinstance(part, ToolCall | ToolResult) or (
            isinstance(part, Text) and part.text.strip()
        ):
            return assistant  # known without encoding it
        try:
            return assistant if self.form.is_sent(part, assistant) else None
        except InvalidRequest:
            return assistant  # raised again where it is rendered, with its path


def has_content(form: MessageForm, message: Message) -> bool:
    """Whether anything of a message reaches the wire. Reasoning alone does not."""
    assistant = message.role == "assistant"
    if assistant and _only_reasoning(message):
        return False
    return any(form.is_sent(part, assistant) for part in message.parts)


def _only_reasoning(message: Message) -> bool:
    """Whether a message is only reasoning, or white space after it."""
    return any(isinstance(part, Thinking) for part in message.parts) and all(
        isinstance(part, Thinking) or _is_blank(part) for part in message.parts
    )


def _is_blank(part: Part) -> bool:
    return isinstance(part, Text) and not part.text.strip()


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _ends_with_results(messages: Sequence[Message], count: int) -> bool:
    """Whether the next message after so many would be sent together with tool results."""
    while count and messages[count - 1].role not in ("assistant", "system"):
        count -= 1
        if _has_results(messages[count]):
            return True
    return False


def _fields_left_out(whose: str, place: str) -> Notice:
    return Notice("fields_left_out", f"the fields of {whose} are left out", place)


# ── Roles and glue ────────────────────────────────────────────────────────────────────────────────

_OPENINGS = {
    role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant", "system")
}


def opening(role: str) -> bytes:
    """A message up to its first block."""
    fields = role.fields if isinstance(role, RoleOf) else b""
    if fields:
        return b'{"role":%b,%b,"content":[' % (string(role), fields)
    return _OPENINGS[role]


def joins(role: str, last: str | None) -> bool:
    """Whether a message is merged into the one before it."""
    return role == last and type(role) is str and type(last) is str


def _own(role: str) -> RoleOf:
    """The role of a message that is not merged."""
    return role if isinstance(role, RoleOf) else RoleOf(role)


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────


def alternating_runs(
    form: MessageForm, call: Call, profile: Profile, previous: Rendered | None
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run per segment, glued to the one before it."""
    segments = call.ir.body_runs()
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for index, segment in enumerate(segments):
        if segment.role is _TAIL:
            segment, runs, notice = place_tail(segment, runs, call.params, profile)
            notices += [notice] if notice else []
        before, after = runs[-1].last_role if runs else None, _role_after(form, segments, index)
        last = previous_run(previous, "messages", segment.role)
        add = SegmentEncoder(form, segment, profile, before, after).add
        unchanged = partial(_unchanged_count, form, segment.messages, last, before, after)
        log, count, more = extend_log(segment.messages, last, add, unchanged)
        notices += more
        if count:
            lead, message, block = _joint(runs[-1] if runs else None, before, log.roles[0])
            run = ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                source=segment.messages,
                first_message=message,
                first_block=block,
                before=before,
                after=after,
            )
            runs.append(run)
    if not runs:
        raise InvalidRequest(f"{form.host} needs at least one message with content", path="ir")
    runs[-1] = msgspec.structs.replace(runs[-1], close=b"]}]")
    return runs, notices


def _joint(last: ChunkRun | None, before: str | None, role: str) -> tuple[bytes, int, int]:
    """The glue between two runs, and where the second begins: message on the wire, block in it."""
    if last is None:
        return b'"messages":[' + opening(role), 0, 0
    message, block = last.position(last.count - 1)
    if joins(role, before):
        return b",", message, block + 1
    return b"]}," + opening(role), message + 1, 0


# ── System messages ───────────────────────────────────────────────────────────────────────────────


def undecided_start(form: MessageForm, messages: Conversation, end: int) -> int:
    """The first of the last messages that are system messages or without content."""
    while end and (messages[end - 1].role == "system" or not has_content(form, messages[end - 1])):
        end -= 1
    return end


def _unchanged_count(
    form: MessageForm,
    messages: Conversation,
    last: ChunkRun | None,
    before: str | None,
    after: str | None,
    shared: int,
) -> int:
    """How many of the shared messages may keep their bytes: the role of a system message depends
    on its neighbours."""
    if last is None or (last.before, last.after) != (before, after):
        return 0
    start = undecided_start(form, messages, shared)
    follows = _assistant_follows(form, messages, start, after)
    return shared if follows == _assistant_follows(form, last.source, start, after) else start


def _assistant_follows(
    form: MessageForm, messages: Sequence[Message], index: int, after: str | None
) -> bool:
    """Whether the assistant is next, past any system messages, or no message follows."""
    while index < len(messages):
        message = messages[index]
        if message.role != "system" and has_content(form, message):
            return message.role == "assistant"
        index += 1
    return after in (None, "assistant")


def settled_chunks(form: MessageForm, runs: list[ChunkRun]) -> int:
    """The chunks before a system message that ends the conversation: until the assistant answers,
    the next message may still change its role."""
    first = 0
    for run in runs:
        if run.role is _HISTORY and run.log.contextual:
            start = undecided_start(form, run.source, len(run.source))
            decided = run.log.message_ends[start - 1] if start else 0
            if start < len(run.source) and decided < run.count:
                return first + decided
        first += run.count
    return first


def _role_after(form: MessageForm, segments: tuple[Segment, ...], index: int) -> str | None:
    """The role of the next message with content after a segment. After the conversation it is that
    of the reply, or of the dynamic context if that was moved there; the volatile tail is placed
    separately."""
    for following in segments[index + 1 :]:
        if segments[index].role is _HISTORY and following.role is not _DYNAMIC:
            break
        for message in following.messages:
            if has_content(form, message):
                return message.role
    return None


# ── The volatile tail ─────────────────────────────────────────────────────────────────────────────


def place_tail(
    tail: Segment, runs: list[ChunkRun], params: Params, profile: Profile
) -> tuple[Segment, list[ChunkRun], Notice | None]:
    """The tail to render after these runs, and the runs that stay before it.

    Some models drop all earlier thinking at a plain user block, which voids every cached message.
    Inside a tool loop the state is then put into the last tool result, or sent as a system message
    if the model accepts one there.
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
    """Move the last tool result out of the conversation's run and add the state to it, for this
    turn only; the next turn renders it without the state."""
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


# ── Marks ─────────────────────────────────────────────────────────────────────────────────────────


def mark_places(message: Message, form: MessageForm, profile: Profile) -> Iterator[MarkPlace]:
    """The sent parts of a message."""
    sent = [True] * len(message.parts) if form.as_sent else form.sent_parts(message, profile)
    indexes = (index for index, is_sent in enumerate(sent) if is_sent)
    return (MarkPlace((index,), chunk) for chunk, index in enumerate(indexes))
