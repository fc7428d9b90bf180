"""Params and results of `llm.complete` and related methods, the calls made from them, and the
deltas of a streamed call: `llm.delta {id, seq, delta}`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from anaphora.client.arguments import tools_of
from anaphora.client.parameters import params_of
from anaphora.client.structured import output_of
from anaphora.daemon import (
    LONGEST_NAME,
    MOST_MESSAGES,
    LlmCompleteInput,
    LlmCompleteResponse,
    LlmUsage,
)
from anaphora.daemon.calls.call import AppReply
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.values import (
    CachePolicy,
    Event,
    Message,
    Notice,
    PartDelta,
    PartEnd,
    Refusal,
    RefusalDelta,
    StopReason,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
)
from anaphora.wire.message_dicts import read_message

from .protocol import write_notification

_Name: TypeAlias = Annotated[str, Meta(pattern=r"\S", max_length=LONGEST_NAME)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**32 - 1)]
_Object: TypeAlias = dict[str, Any]

#: Fields of `PromptParams` that are model parameters of the same name.
_PARAMS = (
    "max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "tool_choice", "reasoning",
)  # fmt: skip


# ── llm.complete ─────────────────────────────────────────────────────────────────────────────────


class RpcChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in the form of OpenAI's SDK, or of Anthropic's."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Object] | None = None
    """A text, or a list of parts."""
    tool_calls: list[_Object] | None = None
    """Tool calls of the assistant, as in a call's result."""
    tool_call_id: str | None = None
    """The id of the call, in a tool's result."""
    name: str | None = None


class RpcSystemBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the system prompt and its cache policy."""

    text: str
    label: Annotated[str, Meta(max_length=LONGEST_NAME)] = "system"
    cache: Literal["none", "5m", "1h"] = "none"


class PromptParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Params of `llm.count_tokens`. Either a provider or a model is needed."""

    provider: _Name | None = None
    """The id of a provider or a route in llm.yaml; by default one that has the model."""
    model: _Name | None = None
    """By default the provider's."""
    messages: tuple[RpcChatMessage, ...] = ()
    """Oldest first. The daemon never shortens them."""
    system: str | tuple[RpcSystemBlock, ...] | None = None
    tools: tuple[_Object, ...] = ()
    """Functions, in the form of OpenAI's SDK or of Anthropic's."""
    tool_choice: str | _Object | None = None
    """`auto`, `required`, `none`, or the name of a tool."""
    max_tokens: _Count | None = None
    """By default the provider's, at most the grant's."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stop: str | tuple[str, ...] = ()
    seed: int | None = None
    reasoning: str | _Object | None = None
    """An effort (`low`, `medium`, `high`, …), or an object with its details."""
    output_schema: _Object | Literal["json"] | None = None
    """A JSON Schema for the reply; `json`: any JSON object, as the prompt describes."""
    timeout_ms: _Count | None = None
    """For the whole call, including waits and retries."""


class CompleteParams(PromptParams, frozen=True, kw_only=True, omit_defaults=True):
    """Params of `llm.complete`. Either a provider or a model is needed."""

    stream: bool = False
    """Whether deltas are sent before the result, as notifications `llm.delta`."""
    cold: Literal["allow"] | None = None
    """`allow`: the call is sent although its cached beginning is gone (`cold_above_usd`)."""


class RpcFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """The JSON that the model wrote."""


class RpcToolCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    id: str
    function: RpcFunction


class RpcUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens; null if the provider did not report a count."""

    uncached: int | None = None
    """Input neither read from a cache nor written to one."""
    read: int | None = None
    written: int | None = None
    output: int | None = None


class RpcNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A difference between the call and the request sent to the provider."""

    code: str
    message: str
    path: str = ""


class CompleteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `llm.complete`."""

    request_id: str
    """For `llm.explain`."""
    text: str
    tool_calls: tuple[RpcToolCall, ...]
    stop_reason: StopReason
    usage: RpcUsage
    cost_usd: float | None
    """Null if the price is unknown."""
    model: str
    """The model that answered."""
    provider: str
    """Id in llm.yaml of the provider that answered."""
    verdict: str | None
    """What happened to the cached prefix, in a sentence."""
    notices: tuple[RpcNotice, ...]


def call_of(params: PromptParams) -> Call:
    """Raises `InvalidRequest` with the path of the field."""
    if params.provider is None and params.model is None:
        raise InvalidRequest("name a provider or a model", path="provider")
    messages = tuple(
        _message(message, f"messages[{index}]") for index, message in enumerate(params.messages)
    )
    system = params.system or ()
    blocks = [
        PromptBlock(block.label, block.text, CachePolicy(block.cache))
        for block in ((RpcSystemBlock(text=system),) if isinstance(system, str) else system)
    ]
    tools = tools_of(params.tools).source.current
    given = {name: getattr(params, name) for name in _PARAMS}
    options = params_of({n: v for n, v in given.items() if v not in (None, ())}, tools=tools)
    if (schema := params.output_schema) is not None:
        options["output"] = schema if schema == "json" else output_of(schema).output
    return Call(
        ir=_prompt(blocks, messages),
        model=params.model or "",
        tools=tools,
        params=Params(**options),
    )


def _message(message: RpcChatMessage, path: str) -> Message:
    content = message.content
    if isinstance(content, str) and message.role != "tool" and message.tool_calls is None:
        return getattr(Message, message.role)(content)  # type: ignore[no-any-return]
    return read_message(msgspec.to_builtins(message), path)


def _prompt(blocks: list[PromptBlock], messages: tuple[Message, ...]) -> PromptIR:
    """Leading system messages are appended to the given system prompt."""
    if len(messages) > MOST_MESSAGES:
        raise InvalidRequest(f"a prompt may have {MOST_MESSAGES:,} messages", path="messages")
    leading = 0
    for index, message in enumerate(messages):
        if message.role != "system" or not all(isinstance(part, Text) for part in message.parts):
            break
        blocks.append(PromptBlock(f"message{index}", message.text))
        leading += 1
    blocks = [block for block in blocks if block.text.strip()]
    if not blocks and leading == len(messages):
        raise InvalidRequest("there is neither a message nor a system prompt", path="messages")
    if len(blocks) == 1 and not blocks[0].cache.is_cached:
        return PromptIR.chat(messages[leading:], system=blocks[0].text)
    return PromptIR.chat(messages[leading:], system=blocks)


def result_of(reply: AppReply, notices: tuple[Notice, ...] = ()) -> CompleteResult:
    usage = reply.usage
    return CompleteResult(
        request_id=reply.request_id,
        text=reply.reply.text,
        tool_calls=tuple(
            RpcToolCall(id=call.id, function=RpcFunction(call.name, call.arguments))
            for call in reply.reply.tool_calls
        ),
        stop_reason=reply.reply.stop_reason,
        usage=RpcUsage(
            uncached=usage.uncached,
            read=usage.read,
            written=usage.written_total,
            output=usage.output,
        ),
        cost_usd=None if reply.cost_usd is None else float(reply.cost_usd),
        model=reply.model,
        provider=reply.provider,
        verdict=None if reply.verdict is None else reply.verdict.describe(excerpts=False),
        notices=tuple(
            RpcNotice(code=notice.code, message=notice.message, path=notice.path)
            for notice in (*reply.notices, *notices)
        ),
    )


# ── nexo/admin/llm/complete ──────────────────────────────────────────────────────────────────────


def nexo_call(params: LlmCompleteInput) -> Call:
    blocks = [PromptBlock("system_prompt", params.system_prompt or "")]
    messages = tuple(
        Message(role=message.role, parts=(Text(message.content),)) for message in params.messages
    )
    return Call(
        ir=_prompt(blocks, messages),
        model=params.model,
        params=Params(max_tokens=params.max_tokens, temperature=params.temperature),
    )


def nexo_result(reply: AppReply) -> LlmCompleteResponse:
    """The plain text, or that of a refusal if there is no other."""
    refusals = (part.text for part in reply.reply.message.parts if isinstance(part, Refusal))
    prompt, output = reply.usage.input or 0, reply.usage.output or 0
    return LlmCompleteResponse(
        content=reply.reply.text or "".join(refusals),
        model=reply.model,
        usage=LlmUsage(
            prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output
        ),
    )


# ── llm.delta ────────────────────────────────────────────────────────────────────────────────────
#
# A text delta is a string; joined, they are the `text` of the result. Other deltas are objects:
# `{"thinking": "…"}`, `{"refusal": "…"}`, `{"tool_call": {"id": …, "name": …, "arguments": "…"}}`.
# `seq` counts from 0.

DELTA_METHOD = "llm.delta"


class ToolCallFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delta of a tool call. The first one has its id and name."""

    index: int
    """Distinguishes tool calls."""
    id: str = ""
    name: str = ""
    arguments: str = ""


class OtherDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delta other than text: exactly one field is set."""

    thinking: str = ""
    refusal: str = ""
    tool_call: ToolCallFields | None = None


DeltaValue: TypeAlias = str | OtherDelta


class DeltaParams(msgspec.Struct, frozen=True):
    """Params of the notification `llm.delta`."""

    id: msgspec.Raw
    """The id of the request."""
    seq: int
    delta: DeltaValue


class DeltaWriter:
    """Writes the events of one stream as notifications, one per line."""

    def __init__(self, id: bytes) -> None:
        self._id = msgspec.Raw(id)
        self._seq = 0
        self._lengths: dict[int, int] = {}
        """Characters of the parts so far: a part may also arrive complete at its end."""
        self._named: set[int] = set()

    def lines(self, events: Iterable[Event]) -> bytes:
        """The notifications for these events; empty if none has a delta."""
        lines = bytearray()
        for event in events:
            for value in self._values(event):
                params = DeltaParams(self._id, self._seq, value)
                lines += write_notification(DELTA_METHOD, params) + b"\n"
                self._seq += 1
        return bytes(lines)

    def _values(self, event: Event) -> Iterator[DeltaValue]:
        match event:
            case PartDelta(index, delta):
                self._lengths[index] = self._lengths.get(index, 0) + len(delta)
                if isinstance(event, ToolArgumentsDelta):
                    yield self._tool_call(index, event.call_id, event.name, delta)
                elif isinstance(event, TextDelta) and delta:
                    yield delta
                elif isinstance(event, ThinkingDelta) and delta:
                    yield OtherDelta(thinking=delta)
                elif isinstance(event, RefusalDelta) and delta:
                    yield OtherDelta(refusal=delta)
            case PartEnd(index, part):
                rest = slice(self._lengths.pop(index, 0), None)
                match part:
                    case Text(text) if text[rest]:
                        yield text[rest]
                    case Thinking(text) if text[rest]:
                        yield OtherDelta(thinking=text[rest])
                    case Refusal(text) if text[rest]:
                        yield OtherDelta(refusal=text[rest])
                    case ToolCall(id, name, text) if text[rest] or index not in self._named:
                        yield self._tool_call(index, id, name, text[rest])

    def _tool_call(
        self, index: int, id: str | None, name: str | None, arguments: str
    ) -> OtherDelta:
        if index in self._named:
            return OtherDelta(tool_call=ToolCallFields(index=index, arguments=arguments))
        self._named.add(index)
        fields = ToolCallFields(index=index, id=id or "", name=name or "", arguments=arguments)
        return OtherDelta(tool_call=fields)
