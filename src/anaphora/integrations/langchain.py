"""A chat model for LangChain: `pip install "anaphora[langchain]"`.

    from anaphora.integrations.langchain import ChatAnaphora

    model = ChatAnaphora(model="claude-sonnet-4-5")
    answer = model.invoke(messages)
    answer.response_metadata["verdict"]

LangChain sends the whole history with each call. Conversations are recognised by their prompts, so
one model object serves any number of them, from any thread and event loop. A reply that LangChain's
fields cannot hold exactly is kept beside them, so that it is sent back byte by byte.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, cast

import msgspec
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from anaphora import canonical
from anaphora.client.client import AsyncClient
from anaphora.client.config.environment import Environment
from anaphora.client.response import Response
from anaphora.client.shared import shared_client
from anaphora.client.structured import output_of
from anaphora.client.sync import Client
from anaphora.errors import InvalidRequest
from anaphora.prompt import Params, ToolChoice
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Event,
    FileId,
    Image,
    Message,
    Part,
    PartEnd,
    PartStart,
    Refusal,
    ReplyEnd,
    Source,
    Text,
    TextPieces,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)
from anaphora.wire.message_dicts import read_part

__all__ = ["ChatAnaphora"]

#: Where a reply is kept that LangChain's fields cannot hold exactly.
_KEPT = "anaphora_message"
#: The request fields of each wire that ask for JSON of any schema.
_JSON_MODE = {
    "openai_chat": {"response_format": {"type": "json_object"}},
    "openai_responses": {"text": {"format": {"type": "json_object"}}},
    "gemini": {"generationConfig": {"responseMimeType": "application/json"}},
}
_MEDIA: dict[str, type[Image | Audio | Document]] = {
    "image": Image, "audio": Audio, "file": Document, "text-plain": Document,
}  # fmt: skip
#: Blocks of content that repeat what is in `tool_calls`.
_CALL_BLOCKS = ("tool_call", "tool_call_chunk", "tool_use", "function_call", "input_json_delta")
_PARAMETERS = ("temperature", "top_p", "max_tokens", "timeout", "stop", "reasoning")

#: Held while a model makes its client.
_MAKING = threading.Lock()

_decode = msgspec.json.Decoder(Message).decode
_encode = msgspec.json.Encoder().encode


class ChatAnaphora(BaseChatModel):
    """Any model of any provider. Keys come from the environment, as in `Client.from_env`, unless a
    `client`, a `config` or a `provider` with an `api_key` or `base_url` is given."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: str | None = None
    """`model` or `provider/model`; without it, the model of the provider's configuration."""
    provider: str | None = None
    """The name of a provider or a route."""
    config: Any = Field(default=None, exclude=True)
    """The path of llm.yaml, or its content."""
    client: Client | None = Field(default=None, exclude=True)
    """Makes the calls; models that share it share what it has learned."""
    api_key: SecretStr | None = None
    base_url: str | None = None
    max_retries: int | None = Field(default=None, ge=0)
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    stop: list[str] | None = None
    reasoning: Any = None
    """An effort ("low", "high"), or what `Reasoning` takes."""
    extras: dict[str, Any] | None = None
    """Request fields without a name here: wire name -> the fields."""
    streaming: bool = False

    _own: Client | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_source(self) -> ChatAnaphora:
        given = [name for name in ("client", "config") if getattr(self, name) is not None]
        own = [name for name in ("api_key", "base_url") if getattr(self, name) is not None]
        if len(given) == 2 or (given and (own or self.max_retries is not None)):
            other = (*given[1:], *own, "max_retries")[0]
            raise ValueError(f"{given[0]} and {other} cannot be combined: {given[0]} has its own")
        if own and self.provider is None:
            raise ValueError(
                f"{own[0]} needs the name of its provider, too: provider='anthropic', 'openai', …"
            )
        return self

    @property
    def _llm_type(self) -> str:
        return "anaphora"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("model", "provider", *_PARAMETERS)}
        return {name: value for name, value in shown.items() if value is not None}

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        content, options = self._call(messages, stop, kwargs)
        return _result(self._client.complete(content, self.provider, **options))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        content, options = self._call(messages, stop, kwargs)
        client = self._client
        send = client._client.send
        return _result(
            await client._background.call_from_loop(lambda: send(content, self.provider, **options))
        )

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        content, options = self._call(messages, stop, kwargs)
        turn, chunks = self._client.send(content, self.provider, **options), _Chunks()
        with turn as events:
            for event in events:
                for chunk in chunks.feed(event, lambda: turn.response):
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        content, options = self._call(messages, stop, kwargs)
        background, chunks = self._client._background, _Chunks()
        send = self._client._client.send
        turn = await background.call_from_loop(
            _awaitable(lambda: send(content, self.provider, **options))
        )
        events = background.iterate_from_loop(turn.__aiter__)
        try:
            async for event in events:
                for chunk in chunks.feed(event, lambda: turn.response):
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        finally:
            await events.aclose()

    @property
    def _client(self) -> Client:
        if self.client is not None:
            return self.client
        own = (self.config, self.api_key, self.base_url, self.max_retries)
        if own == (None, None, None, None):
            return shared_client()
        with _MAKING:
            if self._own is None:
                self._own = self._made_client()
            return self._own

    def _made_client(self) -> Client:
        if self.config is not None:
            return Client.from_config(self.config)
        retry: dict[str, Any] = {}
        if self.max_retries is not None:
            retry = {"retry": {"max_attempts": self.max_retries + 1}}
        if self.api_key is None and self.base_url is None:
            return _with_retries(self.max_retries)
        assert self.provider is not None
        fields: dict[str, Any] = {"wire": self.provider, **retry}
        environ = None
        if self.base_url is not None:
            fields["base_url"] = self.base_url
        if self.api_key is not None:
            fields["key"] = {"env": "API_KEY"}
            environ = {"API_KEY": self.api_key.get_secret_value()}
        return Client.from_config({"providers": {self.provider: fields}}, environ=environ)

    def _call(
        self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """What `send` of a client takes."""
        given = {name: value for name, value in given.items() if value is not None}
        given.pop("ls_structured_output_format", None)
        given.pop("stream", None)
        options: dict[str, Any] = {"conversation": True, "model": self.model}
        for name in (*_PARAMETERS, "extras"):
            if (value := getattr(self, name)) is not None:
                options[name] = value
        options.update(given)
        if stop is not None:
            options["stop"] = stop
        if not options.get("stop"):
            options.pop("stop", None)
        parallel = options.pop("parallel_tool_calls", None)
        choice = options.pop("tool_choice", None)
        if choice is not None or parallel is not None:
            options["tool_choice"] = _tool_choice(choice, options.get("tools", ()), parallel)
        if (schema := options.pop("output_schema", None)) is not None:
            options["params"] = Params(output=schema)
        if options.get("model") is None:
            del options["model"]
        return _content(messages), options

    # ── Tools and structured output ──────────────────────────────────────────────────────────────

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools: LangChain's, functions, pydantic classes, or dictionaries."""
        formatted = [_tool(tool, strict) for tool in tools]
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        if parallel_tool_calls is not None:
            kwargs["parallel_tool_calls"] = parallel_tool_calls
        return cast(Any, self.bind(tools=formatted, **kwargs))

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Replies of a schema. `json_schema` is the provider's own structured output,
        `function_calling` a tool that must be called, `json_mode` JSON that the prompt describes;
        Anthropic has no such mode, and gets the prompt as it is."""
        if method == "function_calling":
            given: Any = schema
            return cast(
                Any, super().with_structured_output(given, include_raw=include_raw, **kwargs)
            )
        if kwargs:
            raise InvalidRequest("unknown keyword", path=next(iter(kwargs)))
        is_model = isinstance(schema, type) and is_basemodel_subclass(schema)
        parser: Any = PydanticOutputParser(pydantic_object=cast(Any, schema)) if is_model else None
        traced = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        if method == "json_mode":
            llm = self.bind(extras=_JSON_MODE, ls_structured_output_format=traced)
        elif method == "json_schema":
            json_schema = convert_to_json_schema(schema)
            form = output_of(json_schema, json_schema.get("title"), strict=strict)
            llm = self.bind(output_schema=form.output, ls_structured_output_format=traced)
        else:
            raise InvalidRequest(
                f"must be json_schema, function_calling or json_mode, not {method!r}",
                path="method",
            )
        parser = parser or JsonOutputParser()
        if not include_raw:
            return cast(Any, llm | parser)
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return cast(
            Any,
            RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error"),
        )


def _with_retries(max_retries: int | None) -> Client:
    """The providers of the environment, with that many retries."""
    environment = Environment(None)
    environment.require_any()
    if max_retries is None:
        return Client(AsyncClient.of_environment(environment))
    replace = msgspec.structs.replace
    providers = {}
    for name, each in environment.providers.items():
        retry = replace(each.provider.retry, max_attempts=max_retries + 1)
        providers[name] = replace(each, provider=replace(each.provider, retry=retry))
    return Client(AsyncClient(providers))


def _awaitable(make: Callable[[], Any]) -> Callable[[], Any]:
    async def made() -> Any:
        return make()

    return made


# ── Prompts ──────────────────────────────────────────────────────────────────────────────────────


def _content(messages: list[BaseMessage]) -> list[Any]:
    """The messages; leading system messages as dictionaries, which become the system prompt."""
    content: list[Any] = []
    leading = True
    for index, each in enumerate(messages):
        message = _message(each, f"messages[{index}]")
        leading = leading and message.role == "system"
        texts = [part.text for part in message.parts if isinstance(part, Text)]
        if leading and len(texts) == len(message.parts):
            blocks = [{"type": "text", "text": text} for text in texts]
            content.append({"role": "system", "content": blocks})
        else:
            content.append(message)
    return content


def _message(message: BaseMessage, path: str) -> Message:
    if isinstance(message, AIMessage):
        return _assistant(message, path)
    if isinstance(message, ToolMessage):
        result = ToolResult(
            call_id=message.tool_call_id,
            content=_result_content(message, path),
            error=message.status == "error",
            name=message.name,
        )
        return Message(role="tool", parts=(result,))
    parts = _parts(message, path)
    if isinstance(message, SystemMessage):
        return Message(role="system", parts=parts)
    if isinstance(message, HumanMessage):
        results = tuple(part for part in parts if isinstance(part, ToolResult))
        if results and len(results) == len(parts):
            return Message(role="tool", parts=results)
        return Message(role="user", parts=parts)
    if isinstance(message, ChatMessage):
        roles = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
        roles |= {"system": "system", "developer": "system"}
        if (role := roles.get(message.role)) is not None:
            return Message(role=cast(Any, role), parts=parts)
        raise InvalidRequest(f"unknown role {message.role!r}", path=f"{path}.role")
    raise InvalidRequest(f"cannot be sent: {type(message).__name__}", path=path)


def _assistant(message: AIMessage, path: str) -> Message:
    """The reply as it was received, unless the app has changed it since."""
    kept = message.additional_kwargs.get(_KEPT)
    if isinstance(kept, str):
        try:
            exact = _decode(kept)
        except msgspec.MsgspecError:
            raise InvalidRequest("is not a message", path=f"{path}.{_KEPT}") from None
        if _fields(exact) == _own_fields(message):
            return exact
    parts: list[Part] = [part for part in _parts(message, path) if not isinstance(part, ToolCall)]
    for call in message.tool_calls:
        arguments = canonical.dumps(call["args"], path=f"{path}.tool_calls").decode()
        parts.append(ToolCall(call["id"] or "", call["name"], arguments))
    parts += [
        ToolCall(invalid["id"] or "", invalid["name"] or "", invalid["args"] or "{}")
        for invalid in message.invalid_tool_calls
    ]
    return Message(role="assistant", parts=tuple(parts))


def _own_fields(message: AIMessage) -> tuple[Any, ...]:
    """Text and tool calls, by which a changed message is told from one that was received."""
    calls = [(call["id"], call["name"], call["args"]) for call in message.tool_calls]
    calls += [(call["id"], call["name"], call["args"]) for call in message.invalid_tool_calls]
    return str(message.text), calls


def _fields(message: Message) -> tuple[Any, ...]:
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    valid = [(call.id, call.name, args) for call in calls if (args := _arguments(call)) is not None]
    invalid = [(call.id, call.name, call.arguments) for call in calls if _arguments(call) is None]
    return _shown_text(message), [*valid, *invalid]


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _shown_text(message: Message) -> str:
    return "".join([part.text for part in message.parts if isinstance(part, Text | Refusal)])


def _result_content(message: ToolMessage, path: str) -> Any:
    if isinstance(message.content, str):
        return message.content
    return _parts(message, path)


def _parts(message: BaseMessage, path: str) -> tuple[Part, ...]:
    """The content in any of LangChain's forms."""
    if isinstance(message.content, str):
        return (Text(message.content),) if message.content else ()
    blocks: Any = message.content
    if not isinstance(message, AIMessage):
        blocks = message.content_blocks
    parts = (
        _part(block, f"{path}.content[{index}]", message) for index, block in enumerate(blocks)
    )
    return tuple([part for part in parts if part is not None])


def _part(block: Any, path: str, message: BaseMessage) -> Part | None:
    if isinstance(block, str):
        return Text(block)
    if block.get("type") == "non_standard":
        block = block["value"]
    kind = block.get("type")
    if kind in _MEDIA and "source" not in block and not isinstance(block.get("file"), Mapping):
        return _media(block, path)
    if isinstance(message, AIMessage):
        if kind == "reasoning" or (kind == "text" and not block.get("text")):
            return None  # a provider takes none without its signature
        if kind in (
            "tool_call",
            "tool_call_chunk",
            "tool_use",
            "function_call",
            "input_json_delta",
        ):
            return None  # from tool_calls
    if kind == "text":
        return Text(block["text"])
    # Markers are placed by the client.
    return read_part({name: each for name, each in block.items() if name != "cache_control"}, path)


def _media(block: Mapping[str, Any], path: str) -> Part:
    kind = _MEDIA[block["type"]]
    media_type = block.get("mime_type")
    extras = block.get("extras") or {}
    source: Source
    if block.get("base64") is not None:
        if media_type is None:
            raise InvalidRequest("is missing", path=f"{path}.mime_type")
        try:
            source = Bytes(base64.b64decode(block["base64"], validate=True), media_type)
        except ValueError:
            raise InvalidRequest("is not base64", path=f"{path}.base64") from None
    elif block.get("text") is not None:
        source = Bytes(block["text"].encode(), "text/plain")
    elif block.get("url") is not None:
        source = Url(block["url"], media_type)
    elif block.get("file_id") is not None:
        if "provider" not in extras:
            raise InvalidRequest(
                'a file id is valid at one provider; name it: "extras": {"provider": …}', path=path
            )
        source = FileId(extras["provider"], block["file_id"], media_type)
    else:
        raise InvalidRequest("has no base64, url, text or file_id", path=path)
    if kind is Document:
        title = block.get("title") or extras.get("filename") or extras.get("title")
        return Document(source, title)
    return kind(source)


def _tool(tool: Any, strict: bool | None) -> Any:
    if isinstance(tool, Mapping) and tool.get("type") not in (None, "function", "custom"):
        return dict(tool)  # a provider's own
    if isinstance(tool, Mapping) and "cache_control" in tool:
        tool = {name: each for name, each in tool.items() if name != "cache_control"}
    return convert_to_openai_tool(tool, strict=strict)


def _tool_choice(choice: Any, tools: Sequence[Any], parallel: bool | None) -> ToolChoice:
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        choice = name if name is not None else choice.get("type", "auto")
    if choice is True:
        if len(tools) != 1:
            raise InvalidRequest(
                f"True stands for the only tool, but there are {len(tools)}; name one",
                path="tool_choice",
            )
        choice = tools[0]["function"]["name"]
    if choice in (None, False, "auto"):
        return ToolChoice("auto", parallel=parallel)
    if choice in ("any", "required"):
        return ToolChoice("required", parallel=parallel)
    if choice == "none":
        return ToolChoice("none")
    return ToolChoice("tool", str(choice), parallel=parallel)


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def _result(response: Response[Any]) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=_reply_message(response))])


def _reply_message(response: Response[Any]) -> AIMessage:
    reply = response.reply.message
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    thoughts = [part for part in reply.parts if isinstance(part, Thinking) and part.text]
    content: Any = _shown_text(reply)
    if thoughts:
        texts = [part for part in reply.parts if isinstance(part, Text | Refusal)]
        content = [{"type": "reasoning", "reasoning": part.text} for part in thoughts]
        content += [{"type": "text", "text": part.text} for part in texts]
    message = AIMessage(
        content=content,
        tool_calls=[
            tool_call(name=call.name, args=args, id=call.id)
            for call in calls
            if (args := _arguments(call)) is not None
        ],
        invalid_tool_calls=[
            invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=None)
            for call in calls
            if _arguments(call) is None
        ],
        usage_metadata=cast(Any, _usage(response.usage)),
        response_metadata=_metadata(response),
        id=response.reply.id or None,
    )
    message.additional_kwargs |= _kept(reply, message)
    return message


def _kept(reply: Message, message: AIMessage) -> dict[str, str]:
    """The reply itself, where the message would be sent as something else."""
    if _assistant(message, "message").parts == reply.parts:
        return {}
    return {_KEPT: _encode(reply).decode()}


def _usage(usage: Usage) -> dict[str, Any] | None:
    if usage.input is None or usage.output is None:
        return None
    details: dict[str, int] = {}
    if usage.read is not None:
        details["cache_read"] = usage.read
    if usage.written_total is not None:
        details["cache_creation"] = usage.written_total
    counts: dict[str, Any] = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    }
    if details:
        counts["input_token_details"] = details
    if usage.reasoning is not None:
        counts["output_token_details"] = {"reasoning": usage.reasoning}
    return counts


def _metadata(response: Response[Any]) -> dict[str, Any]:
    record, verdict = response.record, response.verdict
    metadata: dict[str, Any] = {
        "model_name": response.model,
        "model_provider": "anaphora",
        "provider": record.provider,
        "finish_reason": response.stop_reason,
    }
    if response.cost_usd is not None:
        metadata["cost_usd"] = float(response.cost_usd)
    if verdict is not None:
        metadata["verdict"] = {
            "result": verdict.result,
            "text": str(verdict),
            "lost_tokens": verdict.lost,
            "saved_usd": None if verdict.saved is None else float(verdict.saved),
        }
    if response.notices:
        metadata["notices"] = [str(notice) for notice in response.notices]
    return metadata


class _Chunks:
    """The chunks of a stream, from its events."""

    def __init__(self) -> None:
        self._pieces = TextPieces(refusals=True)
        self._id: str | None = None
        self._calls: dict[int, int] = {}
        """The positions of tool calls, by the index of the part."""
        self._deltas: set[int] = set()
        self._thinks = False

    def feed(
        self, event: Event, response: Callable[[], Response[Any] | None]
    ) -> Iterator[ChatGenerationChunk]:
        if isinstance(event, PartStart) and event.kind == "tool_call":
            position = self._calls[event.index] = len(self._calls)
            yield self._call_chunk(position, "", id=event.id, name=event.name)
        elif isinstance(event, ToolArgumentsDelta):
            self._deltas.add(event.index)
            yield self._call_chunk(self._calls[event.index], event.delta)
        elif isinstance(event, PartEnd) and isinstance(event.part, ToolCall):
            if event.index not in self._deltas:  # it came whole
                yield self._call_chunk(self._calls[event.index], event.part.arguments)
        elif isinstance(event, ThinkingDelta):
            self._thinks = True
            block = {"type": "reasoning", "reasoning": event.delta, "index": event.index}
            yield _chunk(content=[block])
        elif isinstance(event, ReplyEnd):
            yield self._last(response())
        elif piece := self._pieces.feed(event):
            index = getattr(event, "index", 0)
            block = {"type": "text", "text": piece, "index": index}
            yield _chunk(content=[block] if self._thinks else piece)

    def _call_chunk(
        self, position: int, arguments: str, *, id: str | None = None, name: str | None = None
    ) -> ChatGenerationChunk:
        piece = tool_call_chunk(name=name, args=arguments, id=id, index=position)
        return _chunk(content="", tool_call_chunks=[piece])

    def _last(self, response: Response[Any] | None) -> ChatGenerationChunk:
        assert response is not None
        whole = _reply_message(response)
        return _chunk(
            content="",
            usage_metadata=whole.usage_metadata,
            response_metadata=whole.response_metadata,
            additional_kwargs=whole.additional_kwargs,
            id=whole.id,
            chunk_position="last",
        )


def _chunk(**fields: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(**fields))
