"""A chat model for LangChain: `pip install "anaphora[langchain]"`.

    from anaphora.integrations.langchain import ChatAnaphora

    model = ChatAnaphora(model="claude-sonnet-4-5")
    answer = model.invoke(messages)
    answer.response_metadata["verdict"]

LangChain sends the whole history with each call. Conversations are recognised by their prompts, so
one model object serves any number of them, from any thread and event loop. A reply that LangChain's
fields cannot represent exactly is kept in the message, and sent back byte for byte. Concurrent
calls with the same beginning (`batch`, `abatch`, several `ainvoke`) write it to the cache once.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from operator import itemgetter
from typing import Any, Literal, cast

import msgspec
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from anaphora.client.client import AsyncClient
from anaphora.client.config.environment import Environment
from anaphora.client.forced_choice import refuses_choice
from anaphora.client.shared import shared_client
from anaphora.client.structured import output_of
from anaphora.client.sync import Client
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.integrations.framework_client import FrameworkClient
from anaphora.prompt import Params, Reasoning

from .prompts import content_of, tool_choice_of, tool_of
from .replies import StreamChunks, chat_result

__all__ = ["ChatAnaphora"]


_PARAMETERS = ("temperature", "top_p", "max_tokens", "timeout", "stop", "reasoning")

#: Held while a model makes its client.
_MAKING = threading.Lock()


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
    """Makes the calls; models with the same client share its state."""
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
    """Other request fields: wire name -> the fields."""
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
            names = "provider='anthropic', 'openai', …"
            raise ValueError(f"{own[0]} needs the name of its provider as well: {names}")
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
        return chat_result(self._calls.complete(content, self.provider, **options))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        content, options = self._call(messages, stop, kwargs)
        return chat_result(await self._calls.acomplete(content, self.provider, **options))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        content, options = self._call(messages, stop, kwargs)
        chunks = StreamChunks()
        with closing(self._calls.stream(content, self.provider, **options)) as items:
            for item in items:
                for chunk in chunks.feed(item):
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
        chunks = StreamChunks()
        async with aclosing(self._calls.astream(content, self.provider, **options)) as items:
            async for item in items:
                for chunk in chunks.feed(item):
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    @property
    def _calls(self) -> FrameworkClient:
        return FrameworkClient(self._client)

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
        """Arguments of a client's `send`."""
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
            options["tool_choice"] = tool_choice_of(choice, options.get("tools", ()), parallel)
        if (schema := options.pop("output_schema", None)) is not None:
            options["params"] = Params(output=schema)
        if options.get("model") is None:
            del options["model"]
        return content_of(messages), options

    def _refuses_choice(self) -> bool:
        """Whether the model is known to refuse a forced tool choice."""
        if self.model is None:
            return False
        given = self.reasoning
        reasoning = given if isinstance(given, Reasoning) else None
        if isinstance(given, Mapping):
            reasoning = Reasoning(mode=given.get("mode"))
        try:
            profile = self._calls.model_profile(self.provider, self.model)
        except AnaphoraError:  # the call itself will say why
            return False
        return refuses_choice(profile, Params(reasoning=reasoning))

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
        formatted = [tool_of(tool, strict) for tool in tools]
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        if parallel_tool_calls is not None:
            kwargs["parallel_tool_calls"] = parallel_tool_calls
        return cast(Any, self.bind(tools=formatted, **kwargs))

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Replies of a schema. `json_schema` is the provider's own structured output,
        `function_calling` a tool that must be called (`json_schema`, with a warning, for a model
        that refuses a forced tool choice), `json_mode` any JSON object, described in the prompt,
        without a schema; Anthropic has no such mode, and gets the unchanged prompt."""
        if schema is None and method != "json_mode":
            raise InvalidRequest("is required unless method='json_mode'", path="schema")
        if method == "function_calling" and self._refuses_choice():
            text = f"{self.model} refuses a forced tool choice; method='json_schema' is used"
            warnings.warn(text, stacklevel=2)
            method = "json_schema"
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
            llm = self.bind(output_schema="json", ls_structured_output_format=traced)
        elif method == "json_schema":
            json_schema = convert_to_json_schema(cast(Any, schema))
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
