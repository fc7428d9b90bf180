"""pydantic-ai agents on Anaphora's client.

    from anaphora.integrations.pydantic_ai import AnaphoraModel

    agent = Agent(AnaphoraModel("claude-sonnet-5-5"), instructions=…)

Cache markers, retries, fallback routes and prices are those of the client. Concurrent runs with the
same beginning write it to the cache once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import exceptions, messages
from pydantic_ai.models import (
    Model,
    ModelRequestParameters,
    StreamedResponse,
    check_allow_model_requests,
)
from pydantic_ai.models._tool_choice import resolve_tool_choice
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from anaphora.client.options import CallOptions
from anaphora.client.response import Response
from anaphora.client.sync import Client
from anaphora.errors import AnaphoraError, ContextOverflow, InvalidRequest, Upstream
from anaphora.prompt import OutputFormat, Params, PromptBlock, Reasoning, ToolChoice
from anaphora.values import (
    Message,
    PartEnd,
    PartStart,
    Refusal,
    RefusalDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    Tool,
    ToolArgumentsDelta,
    ToolCall,
)

from .framework_client import (
    FrameworkClient,
    StreamItem,
    function_tool,
    kept_reply,
    output_schema,
)
from .pydantic_messages import KEPT, add_request, assistant_message

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AnaphoraModel"]

#: Settings, and the parameter for each.
_PARAMS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "service_tier": "service_tier",
    "timeout": "timeout",
}
_FINISH = {
    "end": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "context_overflow": "length",
    "tool_calls": "tool_call",
    "refusal": "content_filter",
}


class AnaphoraModel(Model):
    """A model of any provider of the client."""

    unsupported_settings = frozenset({"extra_body", "extra_headers", "logit_bias", "max_retries"})

    def __init__(
        self,
        model: str,
        *,
        provider: str | None = None,
        client: Client | None = None,
        config: Any = None,
        settings: ModelSettings | None = None,
        profile: Any = None,
    ) -> None:
        """`model` and `provider` are those of `Client.complete`: `anthropic/claude-sonnet-5-5`
        names both. `client` is the application's client. Without it this model makes its own, from
        `config` (llm.yaml) or the keys in the environment."""
        self._model = model
        self._provider_name = provider
        self._calls = FrameworkClient(client, config=config)
        known = self._calls.model_profile(provider, model)
        if profile is None:
            profile = ModelProfile(
                supports_json_schema_output=True,
                supports_thinking=True,
                default_structured_output_mode="native"
                if known.refuses("forced_tools")
                else "tool",
            )
        super().__init__(settings=settings, profile=profile)

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def system(self) -> str:
        return self._provider_name or "anaphora"

    async def request(
        self,
        messages: list[messages.ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> messages.ModelResponse:
        check_allow_model_requests()
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        content, options = await self._call(messages, settings or {}, parameters)
        with _errors(self._model):
            response = await self._calls.acomplete(content, self._provider_name, **options)
        return _response(response)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[messages.ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,  # noqa: ARG002
    ) -> AsyncGenerator[StreamedResponse, None]:
        check_allow_model_requests()
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        content, options = await self._call(messages, settings or {}, parameters)
        events = self._calls.astream(content, self._provider_name, **options)
        async with aclosing(events):
            with _errors(self._model):
                await anext(events)  # a request that is refused fails here
            yield AnaphoraStreamedResponse(
                model_request_parameters=parameters,
                _events=events,
                _model_name=self._model,
                _provider_name=self.system,
            )

    async def _call(
        self,
        history: Sequence[messages.ModelMessage],
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
    ) -> tuple[list[Message], CallOptions]:
        if parameters.native_tools:
            names = ", ".join(type(tool).__name__ for tool in parameters.native_tools)
            raise exceptions.UserError(f"AnaphoraModel has no native tools: {names}")
        content: list[Message] = []
        system: list[str] = []
        for message in history:
            if isinstance(message, messages.ModelRequest):
                await add_request(message, system, content)
            elif (reply := assistant_message(message)).parts:
                content.append(reply)
        system += [part.content for part in self._get_instruction_parts(history, parameters) or ()]
        tools, choice = self._tools(settings, parameters)
        options: dict[str, Any] = {
            name: settings[key] for key, name in _PARAMS.items() if settings.get(key) is not None
        }
        options |= {
            "model": self._model,
            "system": [PromptBlock(f"system{i}", text) for i, text in enumerate(system)] or None,
            "tools": tools or None,
            "tool_choice": choice,
            "reasoning": _reasoning(parameters.thinking),
            "params": Params(output=_output(parameters)),
            "conversation": _is_loop(content, choice, parameters),
        }
        given = {name: value for name, value in options.items() if value is not None}
        return content, cast(CallOptions, given)

    def _tools(
        self, settings: Mapping[str, Any], parameters: ModelRequestParameters
    ) -> tuple[list[Tool], ToolChoice | None]:
        defined = getattr(parameters, "declared_tool_defs", parameters.tool_defs)
        chosen = resolve_tool_choice(settings, parameters)
        if isinstance(chosen, tuple):
            mode, names = chosen
            if mode == "required" and len(names) == 1:
                choice = ToolChoice("tool", next(iter(names)))
            else:
                choice = ToolChoice(mode)
                defined = {name: tool for name, tool in defined.items() if name in names}
        else:
            choice = ToolChoice(chosen)
        tools = [
            function_tool(
                tool.name, tool.description, tool.parameters_json_schema, strict=tool.strict
            )
            for tool in defined.values()
        ]
        parallel = settings.get("parallel_tool_calls")
        if not tools or (choice.mode == "auto" and parallel is None):
            return tools, None
        return tools, ToolChoice(choice.mode, choice.name, parallel)


def _is_loop(
    content: Sequence[Message], choice: ToolChoice | None, parameters: ModelRequestParameters
) -> bool:
    """Whether another call is likely to follow: the model may call functions, whose results come
    with the next call, or has answered before. A tool for the output alone ends the run."""
    calls_functions = bool(parameters.function_tools) and (choice is None or choice.mode != "none")
    return calls_functions or any(message.role == "assistant" for message in content)


def _output(parameters: ModelRequestParameters) -> OutputFormat | None:
    wanted = parameters.output_object
    if parameters.output_mode != "native" or wanted is None:
        return None
    return output_schema(
        wanted.json_schema, wanted.name, description=wanted.description, strict=wanted.strict
    )


def _reasoning(thinking: Any) -> Reasoning | None:
    if thinking is None:
        return None
    if thinking is False:
        return Reasoning(mode="disabled")
    return Reasoning(mode="adaptive", effort="medium" if thinking is True else str(thinking))


# ── Responses ────────────────────────────────────────────────────────────────────────────────────


def _response(response: Response[Any]) -> messages.ModelResponse:
    parts: list[Any] = []
    for part in response.reply.message.parts:
        if isinstance(part, Text | Refusal):
            parts.append(messages.TextPart(part.text))
        elif isinstance(part, Thinking):
            parts.append(
                messages.ThinkingPart(
                    part.text, signature=part.signature, provider_name=response.record.provider
                )
            )
        elif isinstance(part, ToolCall):
            parts.append(messages.ToolCallPart(part.name, part.arguments, tool_call_id=part.id))
    return messages.ModelResponse(
        parts=parts,
        usage=_usage(response),
        model_name=response.model,
        timestamp=datetime.fromtimestamp(response.record.at, UTC),
        provider_name=response.record.provider,
        provider_details=_details(response),
        provider_response_id=response.reply.id or None,
        finish_reason=_FINISH.get(response.stop_reason),
    )


def _usage(response: Response[Any]) -> RequestUsage:
    usage = response.usage
    counted = RequestUsage(
        input_tokens=usage.input or 0,
        cache_read_tokens=usage.read or 0,
        cache_write_tokens=usage.written_total or 0,
        output_tokens=usage.output or 0,
        details={} if usage.reasoning is None else {"reasoning_tokens": usage.reasoning},
    )
    if hasattr(counted, "cost"):  # not in 2.0
        counted.cost = response.cost_usd
    return counted


def _details(response: Response[Any]) -> dict[str, Any] | None:
    reason = response.reply.stop_reason_raw
    details: dict[str, Any] = {} if reason is None else {"finish_reason": reason}
    if response.notices:
        details["notices"] = [str(notice) for notice in response.notices]
    kept = kept_reply(response.reply.message)
    if kept is not None:
        details[KEPT] = kept
    return details or None


@dataclass
class AnaphoraStreamedResponse(StreamedResponse):
    """A reply as it arrives."""

    _events: AsyncGenerator[StreamItem, None]
    _model_name: str
    _provider_name: str
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def close_stream(self) -> None:
        await self._events.aclose()

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        lengths: dict[int, int] = {}
        with _errors(self._model_name):
            async for item in self._events:
                if isinstance(item, Response):
                    self._finish(item)
                    continue
                for event in filter(None, self._converted(item, lengths)):
                    yield event

    def _converted(self, item: StreamItem, lengths: dict[int, int]) -> Iterator[Any]:
        manager = self._parts_manager
        if isinstance(item, PartStart) and item.kind == "tool_call":
            yield manager.handle_tool_call_delta(
                vendor_part_id=item.index, tool_name=item.name, tool_call_id=item.id
            )
            return
        index, piece = -1, ""
        if isinstance(item, PartEnd):
            # A part may come whole, without a delta.
            index, part = item.index, item.part
            whole = part.arguments if isinstance(part, ToolCall) else getattr(part, "text", "")
            piece = whole[lengths.get(index, 0) :]
        elif isinstance(item, TextDelta | RefusalDelta | ThinkingDelta | ToolArgumentsDelta):
            index, piece = item.index, item.delta
            lengths[index] = lengths.get(index, 0) + len(piece)
        kind = item.part if isinstance(item, PartEnd) else item
        if isinstance(kind, Thinking | ThinkingDelta):
            signature = kind.signature if isinstance(kind, Thinking) else None
            if piece or signature:
                yield from manager.handle_thinking_delta(
                    vendor_part_id=index,
                    content=piece,
                    signature=signature,
                    provider_name=self._provider_name,
                )
        elif piece and isinstance(kind, ToolCall | ToolArgumentsDelta):
            yield manager.handle_tool_call_delta(vendor_part_id=index, args=piece)
        elif piece and isinstance(kind, Text | Refusal | TextDelta | RefusalDelta):
            yield from manager.handle_text_delta(vendor_part_id=index, content=piece)

    def _finish(self, response: Response[Any]) -> None:
        self._usage = _usage(response)
        self._model_name = response.model
        self._provider_name = response.record.provider
        self.provider_response_id = response.reply.id or None
        self.provider_details = _details(response)
        self.finish_reason = _FINISH.get(response.stop_reason)

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def provider_name(self) -> str:
        return self._provider_name

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._timestamp


@contextmanager
def _errors(model: str) -> Iterator[None]:
    """Errors as pydantic-ai's own, so that a fallback model can take over."""
    try:
        yield
    except Upstream as problem:
        if problem.status is None and not isinstance(problem, ContextOverflow):
            raise exceptions.ModelAPIError(model, str(problem)) from problem
        raise exceptions.ModelHTTPError(problem.status or 400, model, str(problem)) from problem
    except InvalidRequest as problem:
        raise exceptions.UserError(str(problem)) from problem
    except AnaphoraError as problem:
        raise exceptions.ModelAPIError(model, str(problem)) from problem
