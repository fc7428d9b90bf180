"""A recorded conversation: its messages, and for every call how many of them were sent, when, and
what was billed.

One conversation is one JSON line; unknown fields are ignored.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.tokens import Size
from anaphora.values import Usage, WriteTtl
from anaphora.wording import counted

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]

#: A marker that was sent: on the tools, or behind the message of that index, and its TTL.
Breakpoint: TypeAlias = tuple[Literal["tools"] | Count, Any]


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
    """What was billed. `input` was neither read nor written."""

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
        return sum(self.by_ttl.values())

    @property
    def cached(self) -> int:
        """What the cache held after the call."""
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
    usage: TraceUsage | None = None
    breakpoints: tuple[Breakpoint, ...] | None = None
    """None where they were not recorded."""
    note: str | None = None
    model: str | None = None
    """The model, when not the conversation's."""

    @property
    def at(self) -> float | None:
        """When it started, as far as known."""
        if self.t is not None:
            return self.t
        if self.t_end is not None:
            return self.t_end - (self.dur or 0.0)
        return None


class TraceMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    size: Size | None = None
    """Its size in the request, where that is known."""

    @property
    def block_types(self) -> list[Any]:
        """The type of each content block; None for text."""
        content = self.content if isinstance(self.content, list) else []
        return [block.get("type") if isinstance(block, dict) else None for block in content]

    @property
    def has_thinking(self) -> bool:
        return any(kind in ("thinking", "redacted_thinking") for kind in self.block_types)


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    model: str
    calls: tuple[TraceCall, ...]
    messages: tuple[TraceMessage, ...]
    tools: list[Any] | None = None
    tools_size: Size | None = None
    group: str | None = None
    """Conversations of one run."""
    account: str | None = None
    """The key or account that paid: conversations of one account share a cache."""
    source: str = ""
    wire: str | None = None
    """The protocol, where known: some providers cache differently on another."""
    note: str | None = None
    system_tokens_unknown: bool = False
    """The system prompt and tools are not recorded; only their effect on the counts is."""

    def __post_init__(self) -> None:
        for index, call in enumerate(self.calls):
            if call.messages > len(self.messages):
                raise ValueError(
                    f"calls[{index}].messages is {call.messages}, but there are only"
                    f" {counted(len(self.messages), 'message')}"
                )


_decode = msgspec.json.Decoder(Trace).decode


def read_line(line: bytes, place: str) -> Trace:
    """The conversation in a line; `place` is the file and line for error messages."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidRequest(str(problem), path=place) from None


def unsupported(provider: str, model: str) -> str | None:
    """Why calls to a model cannot be predicted; None when they can. A provider without a list of
    models is a self-hosted server, which serves any."""
    name = catalog.provider_named(provider)
    if name is None:
        return f"unknown provider {provider!r}"
    if catalog.models(name) and not catalog.profile(name, model).known:
        return f"unknown model {model!r} of {name}"
    return None


class RecordedParams:
    """The model and thinking level of a conversation's calls, from the notes of the recording.

    A note is a list of words separated by semicolons. `model_change:…` and
    `thinking_level_change:…` are what was chosen since the previous call; the last one counts. The
    level before the first note is unknown: thinking was off when no reply so far shows any. A
    level chosen between tool results applies from the next user turn on.
    """

    def __init__(self, trace: Trace) -> None:
        self._messages = trace.messages
        self._chosen: str | None = None
        self._level: str | None = None
        self._default: str | None = None
        self.model = trace.model

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
        self.model = call.model or _last_value(call.note, "model_change") or self.model
        if self._level is None or self._level == self._default:
            return {}
        return {"thinking": self._level.encode()}


def _last_value(note: str | None, name: str) -> str | None:
    words = [word for word in (note or "").split(";") if word.startswith(name)]
    return words[-1].partition(":")[2].strip() or None if words else None


class LogLine(NamedTuple):
    place: str
    """File and line, as `file:12`."""
    data: bytes


class FoundTrace(NamedTuple):
    place: str
    trace: Trace


class Problem(NamedTuple):
    place: str
    reason: str
    harmless: bool = False
    """The file is in order, but has no bill to compare with."""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


TraceEntry: TypeAlias = FoundTrace | Problem


def numbered(lines: Iterable[bytes], file: str) -> Iterator[LogLine]:
    """The lines that are not empty."""
    for number, data in enumerate(lines, 1):
        if data.strip():
            yield LogLine(f"{file}:{number}", data)


_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def objects(lines: Iterable[LogLine]) -> Iterator[tuple[str, dict[str, Any]] | Problem]:
    for line in lines:
        try:
            yield line.place, _decode_fields(line.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            yield Problem(line.place, str(problem))


def seconds(stamp: object) -> float | None:
    """A time in unix seconds: from seconds, milliseconds or ISO 8601."""
    if isinstance(stamp, bool):
        return None
    if isinstance(stamp, int | float):
        return stamp / 1000 if stamp > 1e11 else float(stamp)
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(stamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def count(usage: dict[str, Any], name: str) -> int:
    """A number of tokens; a missing one is 0."""
    return reported_count(usage, name) or 0


def reported_count(usage: dict[str, Any], name: str) -> int | None:
    """A number of tokens; None where it is missing."""
    value = usage.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"usage.{name} is not a number of tokens")
    if value < 0:
        raise ValueError(f"usage.{name} is negative: {value}")
    return value


def without_clock_errors(found: FoundTrace) -> Iterator[TraceEntry]:
    """The conversation, and a problem for each call whose clock runs backwards. Such a call keeps
    its place, but has no time, and its bill is not compared."""
    calls: list[TraceCall] = []
    last: float | None = None
    for index, call in enumerate(found.trace.calls):
        error = _clock_error(call, last)
        if error is None:
            last = call.at if call.at is not None else last
        else:
            yield Problem(found.place, f"calls[{index}] {error}: the clock runs backwards")
            call = replace(call, t=None, t_end=None, dur=None, usage=None)
        calls.append(call)
    yield FoundTrace(found.place, replace(found.trace, calls=tuple(calls)))


def _clock_error(call: TraceCall, last: float | None) -> str | None:
    if call.t is not None and call.t_end is not None and call.t_end < call.t:
        return f"ends {call.t - call.t_end:.1f} s before it begins"
    if call.at is not None and last is not None and call.at < last:
        return f"is {last - call.at:.1f} s earlier than the call before it"
    return None
