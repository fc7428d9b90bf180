"""inspect_ai evaluations on Anaphora's client.

    inspect eval task.py --model anaphora/claude-sonnet-5-5
    get_model("anaphora/claude-sonnet-5-5", config="llm.yaml")

The package registers this by an entry point. Samples run concurrently: a shared beginning
is written to the cache by one of them and read by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    Content,
    ContentAudio,
    ContentDocument,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall as InspectToolCall
from inspect_ai.tool import ToolChoice as InspectToolChoice
from inspect_ai.tool import ToolFunction, ToolInfo

from anaphora import canonical
from anaphora.client.options import CallOptions
from anaphora.client.response import Response
from anaphora.client.sync import Client
from anaphora.errors import (
    AnaphoraError,
    ContentRefused,
    ContextOverflow,
    InvalidJson,
    InvalidRequest,
    Unauthenticated,
)
from anaphora.prompt import Params, PromptBlock, Reasoning, ToolChoice
from anaphora.values import (
    Audio,
    Document,
    Image,
    Message,
    Part,
    Refusal,
    ResultPart,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from anaphora.values.codec import loads

from .framework_client import (
    FrameworkClient,
    function_tool,
    kept_reply,
    output_schema,
    restored_reply,
)

#: Generation options, and the parameter for each.
_PARAMS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_seqs": "stop",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "verbosity": "verbosity",
}
#: Options that no call can express.
_REFUSED = ("best_of", "logit_bias", "num_choices", "logprobs", "top_logprobs", "prompt_logprobs")
_STOPS: dict[StopReason, str] = {
    "end": "stop",
    "stop_sequence": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
    "refusal": "content_filter",
    "context_overflow": "model_length",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
#: Metadata key for reply content that inspect's types cannot hold.
_KEPT = "anaphora"


@modelapi(name="anaphora")
class AnaphoraAPI(ModelAPI):
    """A model of any provider of the client."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        provider: str | None = None,
        client: Client | None = None,
        llm_config: Any = None,
    ) -> None:
        """`llm_config` is the path of llm.yaml (`-M llm_config=llm.yaml`), `provider` the name of
        a provider or a route in it. Without one, keys are those of the environment."""
        if base_url is not None or api_key is not None:
            name = "base_url" if base_url is not None else "api_key"
            raise InvalidRequest(
                "belongs to a provider: set it in llm.yaml (-M llm_config=llm.yaml), or in the"
                " environment (ANTHROPIC_API_KEY, OPENAI_BASE_URL, …)",
                path=name,
            )
        super().__init__(model_name, None, None, [], config or GenerateConfig())
        self._provider = provider
        self._calls = FrameworkClient(client, config=llm_config)
        self._calls.model_profile(provider, model_name)  # a wrong name is an error now

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: InspectToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        system, content = _messages(input)
        options = _options(config)
        options |= {
            "model": self.model_name,
            "system": [PromptBlock(f"system{i}", text) for i, text in enumerate(system)] or None,
        }
        if tools:
            options["tools"] = [
                function_tool(
                    each.name, each.description, each.parameters.model_dump(exclude_none=True)
                )
                for each in tools
            ]
            options["tool_choice"] = _choice(tool_choice, config)
            options["conversation"] = tool_choice != "none"  # their results come with the next call
        given = {name: value for name, value in options.items() if value is not None}
        try:
            response = await self._calls.acomplete(
                content, self._provider, **cast(CallOptions, given)
            )
        except ContextOverflow as problem:
            return ModelOutput.from_content(self.model_name, str(problem), "model_length")
        except ContentRefused as problem:
            return ModelOutput.from_content(self.model_name, str(problem), "content_filter")
        return _output(response)

    def should_retry(self, ex: Exception) -> bool:
        """The client has retried already; an evaluation continues to try."""
        return isinstance(ex, AnaphoraError) and ex.retryable

    def is_auth_failure(self, ex: Exception) -> bool:
        return isinstance(ex, Unauthenticated)

    def connection_key(self) -> str:
        return f"{self._provider or ''}/{self.model_name}"

    def tool_result_images(self) -> bool:
        return True

    def tool_result_documents(self) -> bool:
        return True


def _options(config: GenerateConfig) -> dict[str, Any]:
    for name in _REFUSED:
        if getattr(config, name, None) not in (None, False, 1):
            raise InvalidRequest("is not supported by anaphora models", path=name)
    if config.extra_headers or config.extra_body:
        name = "extra_headers" if config.extra_headers else "extra_body"
        raise InvalidRequest("set it for the provider in llm.yaml", path=name)
    options: dict[str, Any] = {
        name: value
        for key, name in _PARAMS.items()
        if (value := getattr(config, key, None)) is not None
    }
    effort = config.reasoning_effort or getattr(config, "effort", None)
    if effort == "none":
        options["reasoning"] = Reasoning(mode="disabled")
    elif effort is not None or config.reasoning_tokens is not None:
        options["reasoning"] = Reasoning(
            mode="adaptive" if config.reasoning_tokens is None else "enabled",
            effort=effort,
            budget_tokens=config.reasoning_tokens,
            summary=None if config.reasoning_summary == "none" else config.reasoning_summary,
        )
    if (wanted := config.response_schema) is not None:
        schema = wanted.json_schema.model_dump(exclude_none=True, by_alias=True)
        form = output_schema(
            schema, wanted.name, description=wanted.description, strict=wanted.strict
        )
        options["params"] = Params(output=form)
    return options


def _choice(choice: InspectToolChoice, config: GenerateConfig) -> ToolChoice | None:
    parallel = config.parallel_tool_calls
    if isinstance(choice, ToolFunction):
        return ToolChoice("tool", choice.name, parallel)
    if choice == "auto" and parallel is None:
        return None
    return ToolChoice(cast(Any, _CHOICES[choice]), None, parallel)


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def _messages(input: Sequence[ChatMessage]) -> tuple[list[str], list[Message]]:
    """The system prompt, and the other messages."""
    system: list[str] = []
    content: list[Message] = []
    for message in input:
        if isinstance(message, ChatMessageSystem):
            if content:
                content.append(Message.system(message.text))
            else:
                system.append(message.text)
        elif isinstance(message, ChatMessageUser):
            content.append(Message(role="user", parts=_parts(message.content)))
        elif isinstance(message, ChatMessageTool):
            content.append(Message(role="tool", parts=(_result(message),)))
        elif (reply := _assistant(message)).parts:
            content.append(reply)
    return system, content


def _assistant(message: ChatMessageAssistant) -> Message:
    parts: list[Part] = [Text(message.text)] if message.text else []
    for call in message.tool_calls or ():
        arguments = canonical.dumps(call.arguments, path=f"tool_calls.{call.id}").decode()
        parts.append(ToolCall(call.id, call.function, arguments))
    kept = (message.metadata or {}).get(_KEPT)
    return restored_reply(kept, Message(role="assistant", parts=tuple(parts)))


def _result(message: ChatMessageTool) -> ToolResult:
    content: str | tuple[ResultPart, ...]
    if message.error is not None:
        content = message.error.message
    elif isinstance(message.content, str):
        content = message.content
    else:
        content = _parts(message.content)
    return ToolResult(
        call_id=message.tool_call_id or "",
        content=content,
        error=message.error is not None,
        name=message.function,
    )


def _parts(content: str | Sequence[Content]) -> tuple[ResultPart, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(item) for item in content if not isinstance(item, ContentReasoning))


def _part(item: Content) -> ResultPart:
    if isinstance(item, ContentText):
        return Text(item.text)
    if isinstance(item, ContentImage):
        detail = None if item.detail == "auto" else item.detail
        make: Any = Image.from_url if _is_url(item.image) else Image.from_file
        return cast(Image, make(item.image, detail=detail))
    if isinstance(item, ContentDocument):
        if _is_url(item.document):
            return Document.from_url(item.document, title=item.filename or None)
        return Document.from_file(item.document, title=item.filename or None)
    if isinstance(item, ContentAudio) and not _is_url(item.audio):
        return Audio.from_file(item.audio)
    raise InvalidRequest(f"anaphora models take no {type(item).__name__}", path="content")


def _is_url(place: str) -> bool:
    return place.startswith("data:") or "://" in place


# ── Output ───────────────────────────────────────────────────────────────────────────────────────


def _output(response: Response[Any]) -> ModelOutput:
    content: list[Content] = []
    for part in response.reply.message.parts:
        if isinstance(part, Text):
            content.append(ContentText(text=part.text))
        elif isinstance(part, Refusal):
            content.append(ContentText(text=part.text, refusal=True))
        elif isinstance(part, Thinking):
            content.append(
                ContentReasoning(
                    reasoning=part.text or part.data or "",
                    signature=part.signature,
                    redacted=not part.text,
                )
            )
    kept = kept_reply(response.reply.message)
    message = ChatMessageAssistant(
        content=content[0].text if _is_plain(content) else content,
        tool_calls=[_tool_call(call) for call in response.tool_calls] or None,
        model=response.model,
        source="generate",
        metadata=None if kept is None else {_KEPT: kept},
    )
    notices = [str(notice) for notice in response.notices]
    stop = cast(Any, _STOPS.get(response.stop_reason, "unknown"))
    return ModelOutput(
        model=response.model,
        choices=[ChatCompletionChoice(message=message, stop_reason=stop)],
        usage=_usage(response),
        time=response.record.seconds,
        metadata={"notices": notices} if notices else None,
    )


def _is_plain(content: Sequence[Content]) -> bool:
    return len(content) == 1 and isinstance(content[0], ContentText) and not content[0].refusal


def _tool_call(call: ToolCall) -> InspectToolCall:
    problem = None
    try:
        arguments = loads(call.arguments or "{}")
        if not isinstance(arguments, dict):
            problem = f"the arguments must be a JSON object, not {call.arguments[:200]}"
    except InvalidJson as error:
        problem = f"the arguments are not JSON ({error.reason}): {call.arguments[:200]}"
    return InspectToolCall(
        id=call.id,
        function=call.name,
        arguments={} if problem else arguments,
        parse_error=problem,
        type="function",
    )


def _usage(response: Response[Any]) -> ModelUsage:
    usage = response.usage
    cost = response.cost_usd
    return ModelUsage(
        input_tokens=usage.uncached or 0,
        output_tokens=usage.output or 0,
        total_tokens=usage.total or 0,
        input_tokens_cache_read=usage.read,
        input_tokens_cache_write=usage.written_total,
        reasoning_tokens=usage.reasoning,
        total_cost=None if cost is None else float(cost),
    )
