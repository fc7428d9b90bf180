"""A recorded conversation: its messages, and for every call how many of them were sent, when, and
what was billed.

One conversation is one JSON line; unknown fields are ignored.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora import catalog
from anaphora.cache.sent_call import ProgramEvent
from anaphora.cache.verdict import Diagnosis
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.rendered.media import Size
from anaphora.values import TTL_SECONDS, Ttl, Usage, WriteTtl
from anaphora.wire.reading import decode_reason
from anaphora.wording import counted

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]

#: A marker as it is written in a trace; see `RecordedMarker`.
Breakpoint: TypeAlias = tuple[Any, ...]


class RecordedMarker(NamedTuple):
    """A marker that was sent."""

    where: Literal["tools", "automatic"] | int
    """On a tool, behind the message of that index, or placed by the provider."""
    ttl: Ttl | None = None
    """None: the provider's default."""
    tool: int | None = None
    """The index of the tool; None: the last one."""


def recorded_marker(written: Breakpoint) -> RecordedMarker:
    """Reads `["tools", i, ttl]`, `["automatic", ttl]` or `[message, ttl]`. The TTL may be missing,
    and so may the index of a tool."""
    where, *rest = written or (None,)
    tool = None
    if where == "tools" and rest and not isinstance(rest[0], str):
        tool = rest.pop(0)
    ttl = rest.pop(0) if rest else None
    known = where in ("tools", "automatic") if isinstance(where, str) else _is_index(where)
    in_order = tool is None or _is_index(tool)
    lasts = ttl is None or (isinstance(ttl, str) and ttl in TTL_SECONDS)
    if rest or not (known and in_order and lasts):
        shown = msgspec.json.encode(written).decode()
        forms = '["tools", i, ttl], ["automatic", ttl] or [message, ttl]'
        raise ValueError(f"breakpoint {shown} is not {forms}; ttl is {', '.join(TTL_SECONDS)}")
    return RecordedMarker(where, ttl, tool)


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


#: Content blocks that are not text, by their type on any wire.
BLOCK_KINDS = {
    "image": Kind.IMAGE,
    "image_url": Kind.IMAGE,
    "input_image": Kind.IMAGE,
    "document": Kind.DOCUMENT,
    "file": Kind.DOCUMENT,
    "input_file": Kind.DOCUMENT,
    "audio": Kind.AUDIO,
    "input_audio": Kind.AUDIO,
    "tool_use": Kind.TOOL_CALL,
    "tool_result": Kind.TOOL_RESULT,
    "thinking": Kind.THINKING,
    "redacted_thinking": Kind.THINKING,
    "reasoning": Kind.THINKING,
}


class TraceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A bill. `input` was neither read nor written."""

    input: Count = 0
    cache_read: Count = 0
    cache_write_5m: Count = 0
    cache_write_1h: Count = 0
    cache_write_30m: Count = 0
    cache_write_12h: Count = 0
    output: Count | None = None
    reasoning: Count | None = None
    """The part of `output` that was hidden reasoning; None: not recorded."""

    @property
    def by_ttl(self) -> dict[WriteTtl, int]:
        """The tokens written, longest TTL first."""
        ttls: tuple[WriteTtl, ...] = ("12h", "1h", "30m", "5m")
        written = {ttl: getattr(self, f"cache_write_{ttl}") for ttl in ttls}
        return {ttl: tokens for ttl, tokens in written.items() if tokens}

    @property
    def written(self) -> int:
        return (
            self.cache_write_5m + self.cache_write_1h + self.cache_write_30m + self.cache_write_12h
        )

    @property
    def cached(self) -> int:
        """Tokens in the cache after the call."""
        return self.cache_read + self.written

    @property
    def total(self) -> int:
        return self.input + self.cached

    def usage(self) -> Usage:
        return Usage(
            uncached=self.input,
            read=self.cache_read,
            written=self.by_ttl,
            output=self.output,
            reasoning=self.reasoning,
        )


class TraceCall(msgspec.Struct, frozen=True, kw_only=True):
    messages: Count
    """How many leading messages were sent."""
    t: float | None = None
    t_end: float | None = None
    dur: float | None = None
    t_first: float | None = None
    """When its response began, if recorded."""
    usage: TraceUsage | None = None
    usage_unreliable: bool | str | None = None
    """Whether the bill is unreliable, or why. It is removed: nothing is learned from it or compared
    with it."""
    breakpoints: tuple[Breakpoint, ...] | None = None
    """None if they were not recorded."""
    explicit: bool = False
    """The request forbids the provider to place a breakpoint of its own."""
    note: str | None = None
    model: str | None = None
    """The model, when not the conversation's."""
    began_by: Literal["resume", "compaction", "fork", "edit"] | None = None
    """What happened to the conversation before this call: an ended session was resumed; a summary
    replaced the history; the conversation branched off from another copy; earlier messages were
    changed or removed. None: no recorded event."""
    effort: str | None = None
    """The reasoning effort, if the recording names it."""
    thinking: str | None = None
    """The thinking setting, if it is recorded: a budget in tokens, a level, or "none"."""
    permission_mode: str | None = None
    """The program's permission mode, if the recording names it."""
    loaded_skill: bool = False
    """A skill was loaded since the call before."""
    diagnosis: Diagnosis | None = None
    """The provider's own, if it names a change, or that of the program."""
    gap_unknown: bool = False
    """The time since the call before is not known: the clock stepped back in between."""
    place: str | None = None
    """Its file and line, if a call has one of its own."""

    def event_since(self, before: TraceCall) -> tuple[ProgramEvent, str] | None:
        """What the program did since the call before, and that in words."""
        if self.loaded_skill:
            return "skill_loaded", "a skill was loaded"
        was, now = before.permission_mode, self.permission_mode
        if not was or not now or was == now:
            return None
        return "mode_changed", f"the permission mode changed from {was} to {now}"

    def __post_init__(self) -> None:
        for written in self.breakpoints or ():
            recorded_marker(written)

    @property
    def markers(self) -> tuple[RecordedMarker, ...]:
        """The recorded breakpoints."""
        return tuple(map(recorded_marker, self.breakpoints or ()))

    @property
    def at(self) -> float | None:
        """When it started, as far as known."""
        if self.t is not None:
            return self.t
        if self.t_end is not None:
            return self.t_end - (self.dur or 0.0)
        return None

    @property
    def ended(self) -> float | None:
        """When its response ended, as far as known."""
        if self.t_end is not None or self.t is None or self.dur is None:
            return self.t_end
        return self.t + self.dur


class TraceMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    size: Size | None = None
    """Its size in the request, if known."""

    @property
    def block_types(self) -> list[Any]:
        """The type of each content block; None for text."""
        content = self.content if isinstance(self.content, list) else []
        return [block.get("type") if isinstance(block, dict) else None for block in content]

    @property
    def has_thinking(self) -> bool:
        return any(kind in ("thinking", "redacted_thinking") for kind in self.block_types)

    @property
    def is_input(self) -> bool:
        """Neither a reply nor the result of a tool."""
        if self.role in ("assistant", "model", "tool"):
            return False
        return "tool_result" not in self.block_types


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    model: str
    calls: tuple[TraceCall, ...]
    messages: tuple[TraceMessage, ...]
    tools: list[Any] | None = None
    tools_sizes: tuple[Size, ...] | None = None
    """The size of each tool in the request, if known."""
    group: str | None = None
    """Conversations of one run."""
    account: str | None = None
    """The key or account that paid: conversations of one account share a cache."""
    agent: str | None = None
    """The kind of subagent whose conversation it is, if the recording names it."""
    source: str = ""
    wire: str | None = None
    """The protocol, if known: some providers cache differently on another."""
    note: str | None = None
    before: TraceCall | None = None
    """The call before the first one, if another file counts it."""
    system_tokens_unknown: bool = False
    """The system prompt and tools are not recorded; only their effect on the counts is."""
    usage_unreliable: bool | str | None = None
    """All bills of the conversation are unreliable."""

    def only_tools(self, before: TraceCall, call: TraceCall) -> bool:
        """Whether only replies and tool results came between two calls."""
        between = range(before.messages, call.messages)
        return bool(between) and not any(self.messages[index].is_input for index in between)

    def __post_init__(self) -> None:
        for index, call in enumerate(self.calls):
            if call.messages > len(self.messages):
                raise ValueError(
                    f"calls[{index}].messages is {call.messages}, but there are only"
                    f" {counted(len(self.messages), 'message')}"
                )


_decode = msgspec.json.Decoder(Trace).decode


def read_line(line: bytes, place: str) -> Trace:
    """The conversation in a line, without unreliable bills; `place` is the file and line for error
    messages."""
    try:
        trace = _decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidRequest(decode_reason(problem, line), path=place) from None
    trace = _without_deferred(trace)
    if not trace.usage_unreliable and not any(call.usage_unreliable for call in trace.calls):
        return trace
    calls = (
        replace(call, usage=None, usage_unreliable=unreliable)
        if (unreliable := call.usage_unreliable or trace.usage_unreliable)
        else call
        for call in trace.calls
    )
    return replace(trace, calls=tuple(calls))


def _without_deferred(trace: Trace) -> Trace:
    """Without Anthropic's tools that have `defer_loading`, which are not part of the prompt."""
    tools = trace.tools or []
    deferred = [
        isinstance(tool, dict) and tool.get("defer_loading") is True and "input_schema" in tool
        for tool in tools
    ]
    if not any(deferred) or all(deferred):
        return trace
    index = list(accumulate((not one for one in deferred), initial=0))
    calls = [
        replace(call, breakpoints=tuple(_moved(one, index) for one in call.breakpoints or ()))
        if call.breakpoints
        else call
        for call in trace.calls
    ]
    kept = [tool for tool, away in zip(tools, deferred, strict=True) if not away]
    return replace(trace, tools=kept, calls=tuple(calls))


def _moved(written: Breakpoint, index: list[int]) -> Breakpoint:
    """A marker on a tool by the tool's index among those that are left."""
    where, ttl, tool = recorded_marker(written)
    if where != "tools" or tool is None or tool >= len(index):
        return written
    return "tools", index[tool], ttl


def unsupported(provider: str, model: str) -> str | None:
    """Why the calls to a provider cannot be predicted; None when they can."""
    if catalog.provider_named(provider) is not None:
        return None
    maker = catalog.maker_of(model)
    hint = "" if maker is None else f" ({model} is a model of {maker})"
    known = ", ".join(sorted(catalog.shipped().providers))
    return f"unknown provider {provider!r}; name one with --provider{hint}: {known}"


def stand_in(provider: str, model: str) -> str | None:
    """The notice that a model of a known provider has no rows of its own; None when it has. A
    provider without a list of models is a self-hosted server, which serves any."""
    name = catalog.provider_named(provider)
    if name is None or not catalog.models(name) or catalog.profile(name, model).known:
        return None
    unknown = f"unknown model {model!r} of {name}" if model else "no model is recorded"
    return f"{unknown}: simulated with the stand-in rows of {name}"


def models_of(trace: Trace) -> tuple[str, ...]:
    """The models that the conversation's calls went to."""
    named = (call.model or _last_value(call.note, "model_change") for call in trace.calls)
    return tuple(dict.fromkeys((trace.model, *filter(None, named))))


class RecordedParams:
    """The model, effort and thinking level of a conversation's calls, from the notes of the
    recording.

    A note is a list of words separated by semicolons. `model_change:…` and
    `thinking_level_change:…` are choices since the previous call; the last one counts. The
    level before the first note is unknown: thinking was off when no reply so far shows any. A
    level chosen between tool results applies from the next user turn on.
    """

    def __init__(self, trace: Trace) -> None:
        self._messages = trace.messages
        self._chosen: str | None = None
        self._level: str | None = None
        self._default: str | None = None
        self._noted = self.model = trace.model
        self._effort = next((call.effort for call in trace.calls if call.effort), None)
        """Of calls that name none: the last one, or the first that is named."""
        self._thinking = next((call.thinking for call in trace.calls if call.thinking), None)
        """The same, of calls whose thinking setting is recorded."""

    def after(self, call: TraceCall, *, in_loop: bool) -> dict[str, bytes]:
        """The cache parameters of this call, without the model."""
        chosen = _last_value(call.note, "thinking_level_change")
        if chosen is not None:
            if self._default is None:
                thinks = any(one.has_thinking for one in self._messages[: call.messages])
                self._default = ("on" if chosen == "off" else chosen) if thinks else "off"
            self._chosen = chosen
        if not in_loop:
            self._level = self._chosen
        self._noted = _last_value(call.note, "model_change") or self._noted
        self.model = call.model or self._noted
        self._effort = call.effort or self._effort
        params = {} if self._effort is None else {"effort": self._effort.encode()}
        self._thinking = call.thinking or self._thinking
        if self._thinking is not None:
            params["thinking"] = self._thinking.encode()
        elif self._level is not None and self._level != self._default:
            params["thinking"] = self._level.encode()
        return params


def _last_value(note: str | None, name: str) -> str | None:
    words = [word for word in (note or "").split(";") if word.startswith(name)]
    return words[-1].partition(":")[2].strip() or None if words else None
