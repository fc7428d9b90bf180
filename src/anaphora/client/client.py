"""The async client: from a configuration to calls and conversations.

async with AsyncClient.from_config("llm.yaml") as client:
    response = await client.complete("Hello?", model="claude-sonnet-5-5")
    chat = client.session("anthropic-default", model="claude-sonnet-5-5")
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, overload
from weakref import WeakSet

import msgspec

from anaphora.cache.verdict.judgement import ComparedCalls
from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.prompt import Call
from anaphora.redaction import hides_arguments
from anaphora.values import Conversation, Event, Extras, Notice
from anaphora.values.fields import frozen

from .arguments import (
    audit_of,
    callback_of,
    check_results,
    choice_of,
    extras_of,
    flag_of,
    history_of,
    listed_tools,
    not_copyable,
    prompt_from,
    prompts_of,
    seconds_of,
    state_of,
    tools_of,
    watchers_of,
    with_leading_system,
    wrong_client,
)
from .choice import check_order
from .config import ClientConfig, Hop
from .config.environment import Environment
from .config.resolve import ResolvedProvider, resolve
from .content import Content, ToolSet, messages_of
from .conversations import Conversations, id_of, store_of
from .mcp import ConfiguredServers, ServerSettings
from .observe import CallAudit, Watcher, Watchers
from .oneshot import OneShot
from .options import (
    CALL_KEYWORDS,
    CLIENT_KEYWORDS,
    MAP_KEYWORDS,
    PARAM_KEYWORDS,
    SESSION_KEYWORDS,
    CallOptions,
    ClientOptions,
    MapOptions,
    OnPrefixBreak,
    SessionOptions,
    check_keywords,
)
from .parameters import with_params
from .pool import ChosenTargets, ProviderPool, TargetChooser
from .response import Output, Response
from .routing import SessionRoute, conversation_key
from .session import Session
from .session.call_builder import CallBuilder, PromptSource
from .session.compaction import compact_at_of
from .session.handles import Handles
from .session.history import SessionHistory
from .session.keep_warm import CacheRefresher, keep_warm_of
from .session.keeper import ConversationKeeper
from .session.turn_prompt import prompt_of
from .session.turns import SessionTurns
from .structured import Structured, output_of
from .target import Target
from .transport import HttpTransport
from .turn import Turn

if TYPE_CHECKING:
    from .fan_out import FanOut
    from .fan_out.gate import CallGate
    from .mcp.servers import SessionServers

#: Seconds that closing waits for providers to delete handles.
_RELEASE_TIMEOUT = 5.0

#: Where a call holds what a keyword of `send` stands for.
_PLACES_IN_CALL = {
    "system": "ir.system_text or ir.system_blocks",
    "tools": "tools",
    "cache": "ir.cache",
    "extras": "extras",
}

#: Where a prompt holds what a keyword of a session stands for.
_PLACES_IN_PROMPT = {
    "system": "system_text or system_blocks",
    "messages": "a conversation segment (or turns)",
    "state": "a volatile tail segment (or state_turn)",
    "cache": "cache",
}


class AsyncClient:
    """All providers of one configuration. Use it as a context manager, or `close` it."""

    @hides_arguments
    def __init__(
        self,
        providers: Mapping[str, ResolvedProvider] | None = None,
        routes: Mapping[str, Sequence[Hop]] | None = None,
        *,
        watchers: Iterable[Watcher] = (),
        on_wait: Callable[[float], None] | None = None,
        transport: HttpTransport | None = None,
        conversations: Conversations | None = None,
        audit: CallAudit | None = None,
    ) -> None:
        """`watchers` get a record of every call, and `audit`, an `AuditLog`, keeps a row of it;
        `on_wait` is called with the seconds before rate limits delay one; `transport` replaces the
        default one; `conversations` keeps sessions with an id: a mapping or an async store such as
        Redis, by default memory of this process."""
        if not isinstance(providers, Mapping) or not all(
            isinstance(each, ResolvedProvider) for each in providers.values()
        ):
            raise wrong_client(type(self).__name__, providers)
        self._pool = ProviderPool(dict(providers), dict(routes or {}), transport=transport)
        self._chooser = TargetChooser(self._pool)
        checked = (
            callback_of(watcher, f"watchers[{index}]")
            for index, watcher in enumerate(watchers_of(watchers))
        )
        self._watchers = Watchers(checked, audit_of(audit))
        self._on_wait = callback_of(on_wait, "on_wait")
        self._closed = False
        self._holders: set[Handles] = set()
        """All handles that providers hold for conversations, also for those that were dropped."""
        self._refreshers: WeakSet[CacheRefresher] = WeakSet()
        self._mcp = ConfiguredServers()
        self._servers: WeakSet[SessionServers] = WeakSet()
        """MCP servers of all sessions, to be closed."""
        self._compared: ComparedCalls | None = None
        self._call_gate: CallGate | None = None
        self._store = store_of(conversations)
        self._store_ends = conversations is None
        """Stored conversations end with this client, and so do their handles."""
        self._process = uuid.uuid4().hex

    def __reduce__(self) -> NoReturn:
        raise not_copyable(self)

    @classmethod
    @hides_arguments
    def from_config(
        cls,
        source: str | Path | ClientConfig | Mapping[str, Any],
        *,
        environ: Mapping[str, str] | None = None,
        **options: Unpack[ClientOptions],
    ) -> Self:
        """From the path of `llm.yaml`, or its content. Raises for everything that is wrong with it,
        missing secrets included."""
        check_keywords(options, CLIENT_KEYWORDS)
        if isinstance(source, ClientConfig):
            config = source
        elif isinstance(source, Mapping):
            config = ClientConfig.from_mapping(source)
        elif isinstance(source, str | Path):
            config = ClientConfig.read(source)
        else:
            raise InvalidConfig(
                f"must be the path of llm.yaml, or its content, not {type(source).__name__}"
            )
        client = cls(resolve(config, environ=environ), config.routes, **options)
        client._mcp = ConfiguredServers.of(config, environ)
        return client

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **options: Unpack[ClientOptions]
    ) -> Self:
        """Every provider of the catalog whose key is in the environment: `ANTHROPIC_API_KEY`,
        `OPENAI_API_KEY`, …. Raises `MissingSecret` if there is none."""
        check_keywords(options, CLIENT_KEYWORDS)
        environment = Environment(environ)
        environment.require_any()
        return cls.of_environment(environment, **options)

    @classmethod
    def of_environment(cls, environment: Environment, **options: Unpack[ClientOptions]) -> Self:
        client = cls(environment.providers, **options)
        client._chooser = TargetChooser(client._pool, environment=environment)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Releases what providers hold for open conversations, and closes all connections. No call
        can be made afterwards."""
        self._closed = True
        home = self._pool.affinity.loop
        if home is None or home is asyncio.get_running_loop():
            await self._close()
        elif home.is_running():
            there = asyncio.run_coroutine_threadsafe(self._close(), home)
            await asyncio.wrap_future(there)
        # Otherwise that loop has ended, and its connections with it.
        self._pool.forget()

    async def _close(self) -> None:
        for refresher in list(self._refreshers):
            await refresher.close()
        for servers in list(self._servers):
            await servers.close()
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await asyncio.gather(*(handles.release() for handles in list(self._holders)))
        except TimeoutError:
            pass  # handles expire by themselves
        finally:
            await self._pool.close()

    @overload
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: None = None,
        **options: Unpack[CallOptions],
    ) -> Turn[None]: ...
    @overload
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[CallOptions],
    ) -> Turn[Output]: ...
    @overload
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[CallOptions],
    ) -> Turn[Any]: ...
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> Turn[Any]:
        """A single call: await it for the response, or iterate over it to stream.

        `content` is a text, messages or parts, or a whole `Call`; `provider` is the name of a
        provider or a route, and without it the model decides (see `choice.py`); `output` is the
        form that the reply must have. `CallOptions` describes the other keywords. With a `Call`,
        `model`, `params` and parameters replace its own; `system`, `tools`, `cache` and `extras`
        cannot be combined with it. Tools are not run: `Response.tool_calls` has the calls of the
        model.
        """
        if options:
            check_keywords(options, CALL_KEYWORDS)
        once = self.single_call(content, provider, output=output, **options)
        return Turn(once, once.request)

    @overload
    async def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: None = None,
        **options: Unpack[CallOptions],
    ) -> Response[None]: ...
    @overload
    async def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[CallOptions],
    ) -> Response[Output]: ...
    @overload
    async def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[CallOptions],
    ) -> Response[Any]: ...
    async def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> Response[Any]:
        """The response to a single call: see `send`."""
        return await self.send(content, provider, output=output, **options)

    def stream(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Event, None]:
        """The events of a single call: see `send`."""
        return self.send(content, provider, output=output, **options).__aiter__()

    @overload
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: None = None,
        **options: Unpack[MapOptions],
    ) -> FanOut[None]: ...
    @overload
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[MapOptions],
    ) -> FanOut[Output]: ...
    @overload
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[MapOptions],
    ) -> FanOut[Any]: ...
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[MapOptions],
    ) -> FanOut[Any]:
        """A single call for each prompt, which may be whatever `send` takes: await it for the
        result, or iterate over it for the items as they come.

        What prompts share at their beginning is written to the cache by one call of each group,
        and read by the others, which are sent when that is possible. One call that fails is one
        item with an error. `MapOptions` describes the keywords; those of `send` hold for every
        call.
        """
        from .fan_out import FanOut
        from .fan_out.values import split_options

        if options:
            check_keywords(options, MAP_KEYWORDS)
        settings, on_progress, call_options = split_options(options)
        form = None if output is None else output_of(output)
        calls: list[OneShot] = []
        for index, prompt in enumerate(prompts_of(prompts)):
            try:
                calls.append(self.single_call(prompt, provider, output=form, **call_options))
            except InvalidRequest as problem:
                raise problem.within(f"prompts[{index}]") from None
        return FanOut(calls, settings, on_progress)

    def single_call(
        self,
        prompt: Call | Content,
        provider: str | None = None,
        *,
        output: object = None,
        **options: Unpack[CallOptions],
    ) -> OneShot:
        """A call that is not sent yet; the keywords are those of `send`."""
        call, targets = self._routed(prompt, provider, options)
        return OneShot(
            call,
            targets,
            on_wait=self._on_wait,
            watchers=self._watchers,
            compared=self._compared_calls(options),
            output=None if output is None else output_of(output),
            timeout=seconds_of(options.get("timeout"), "timeout"),
        )

    @property
    def call_gate(self) -> CallGate:
        """For calls that a framework makes one by one and concurrently. Used from the event loop of
        this client."""
        if self._call_gate is None:
            from .fan_out.gate import CallGate

            self._call_gate = CallGate(self)
        return self._call_gate

    def _compared_calls(self, options: CallOptions) -> ComparedCalls | None:
        """The earlier calls of conversations, where this is one of them."""
        if not flag_of(options.get("conversation", False), "conversation"):
            return None
        if self._compared is None:
            self._compared = ComparedCalls()
        return self._compared

    def session(self, provider: str | None = None, **options: Unpack[SessionOptions]) -> Session:
        """A conversation. `provider` is the name of a provider or a route; without it, the model
        decides.

        With an `id` it continues what an earlier session with that id has stored, in this process
        or another (see `conversations`): pass its history as `messages`.

        `prompt` is everything but the history: a `PromptIR`, a `RenderedContext`, or a function
        that returns one and is called once a turn; a conversation in it is the initial history.
        `system`, `messages`, `state` and `cache` are a short form of it, and cannot be combined
        with it. `SessionOptions` describes all keywords; those of `ParamOptions` are parameters of
        every call.
        """
        if options:
            check_keywords(options, SESSION_KEYWORDS)
        on_prefix_break = options.get("on_prefix_break", "warn")
        choice_of(on_prefix_break, OnPrefixBreak, "on_prefix_break")
        targets, hops = self._targets(provider, options.get("model"))
        store = options.pop("store", None)  # decided for each provider
        if store is not None:
            flag_of(store, "store")
        servers = self._mcp.chosen(options.get("mcp"))
        given = options.get("tools")
        tools = listed_tools(given) if servers else tools_of(given)
        profiles = [target.profile for target in targets]
        name = id_of(options.get("id"))
        builder = CallBuilder(
            tools=tools,
            params=with_params(options.get("params"), options, tools.source.current),
            extras=frozen(extras_of(options.get("extras")), Extras | None, "extras"),
            store=store,
            diagnose=flag_of(options.get("diagnose", False), "diagnose"),
            compact_at=compact_at_of(options.get("compact_at"), profiles),
        )
        source, messages = _prompt_source(options)
        turns = SessionTurns(
            SessionRoute(targets, hops),
            builder,
            SessionHistory(source, messages, callback_of(options.get("save"), "save")),
            on_prefix_break=on_prefix_break,
            timeout=seconds_of(options.get("timeout"), "timeout"),
            on_wait=self._on_wait,
            watchers=self._watchers,
            holders=self._holders if name is None or self._store_ends else set(),
        )
        if servers:
            self._serve(turns, servers, tools)
        if (warm := keep_warm_of(options.get("keep_warm"))) is not None:
            turns.keep_warm(warm, self._refreshers)
        if name is not None:
            turns.keep_with(ConversationKeeper(self._store, name, self._process, saved_as=name))
        return Session(turns)

    def _serve(
        self, turns: SessionTurns, servers: Sequence[ServerSettings], tools: ToolSet
    ) -> None:
        from .mcp.servers import SessionServers

        assert tools.registry is not None
        started = SessionServers(servers, tools.registry)
        self._servers.add(started)
        turns.use_servers(started)

    @property
    def audit(self) -> CallAudit | None:
        """The audit log of this client's calls. It is closed by who opened it."""
        return self._watchers.audit

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self._pool.providers)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Oddities of the configuration that are no errors."""
        return tuple(notice for one in self._pool.providers.values() for notice in one.notices)

    def _routed(
        self, content: Call | Content, provider: str | None, options: CallOptions
    ) -> tuple[Call, tuple[Target, ...]]:
        """The call that the arguments of `send` stand for, and its targets."""
        model = options.get("model")
        if model is None and isinstance(content, Call):
            model = content.model
        try:
            targets, hops = self._targets(provider, model)
        except InvalidRequest:
            check_order(content, provider)
            raise
        call = call_of(content, targets[0].model, options)
        if len(targets) > 1:
            key = conversation_key(call)
            targets = SessionRoute(targets, hops).order(lambda: key, time.monotonic())
        return call, tuple(targets)

    def _targets(self, provider: str | None, model: str | None) -> ChosenTargets:
        if self._closed:
            raise InvalidRequest("the client is closed", path="client")
        return self._chooser.targets(provider, model)


def call_of(content: Call | Content, model: str, options: CallOptions) -> Call:
    """The call that the arguments of `send` stand for."""
    if not isinstance(content, Call):
        if isinstance(content, Iterator):
            content = tuple(content)
        if content is None:
            raise InvalidRequest("is missing; give a text or messages", path="content")
        system, messages = with_leading_system(options.get("system"), content, messages_of(content))
        if not messages:
            raise InvalidRequest("there is no message besides the system prompt", path="content")
        if len(messages) > 1:
            check_results(messages)
        tools = tools_of(options.get("tools")).source.current
        return Call(
            ir=prompt_from(system, options.get("cache"), messages),
            model=model,
            tools=tools,
            params=with_params(options.get("params"), options, tools),
            extras=extras_of(options.get("extras")),
        )
    _refuse_both(options, "a Call", _PLACES_IN_CALL)
    params = content.params
    if not PARAM_KEYWORDS.isdisjoint(options) or "params" in options:
        params = with_params(options.get("params", params), options, content.tools)
    elif params.stream:  # awaiting or iterating decides
        params = msgspec.structs.replace(params, stream=False)
    return content if params is content.params else msgspec.structs.replace(content, params=params)


def _prompt_source(options: SessionOptions) -> tuple[PromptSource, Conversation]:
    """The source that the keywords of a session stand for, and the initial history."""
    prompt = options.get("prompt")
    if prompt is None:
        system, messages = history_of(options.get("system"), options.get("messages", ()))
        ir = prompt_from(system, options.get("cache"))
        return PromptSource(ir, state_of(options.get("state")), from_keywords=True), messages
    _refuse_both(options, "prompt", _PLACES_IN_PROMPT)
    return PromptSource(prompt_of(prompt)), Conversation()


def _refuse_both(options: Mapping[str, object], whole: str, places: Mapping[str, str]) -> None:
    for name, place in places.items():
        value = options.get(name)
        if value is not None and not (isinstance(value, Sized) and not len(value)):
            raise InvalidRequest(
                f"{whole} and {name} cannot be combined: {whole} has {place} for that", path=name
            )
