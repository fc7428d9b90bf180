"""The client: from a configuration to calls and conversations.

async with AsyncClient.from_config("llm.yaml") as client:
    answered = await client.complete(call, "anthropic-default")
    chat = client.session("anthropic-default", model="claude-sonnet-5-5")
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import msgspec

from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.tools import ToolRegistry
from anaphora.values import AnyTool, Conversation, Event, Extras, Message, Notice

from .asking import Asked, Content, messages_of
from .composing import Composing, beginning
from .config.resolve import ResolvedProvider, resolve
from .config.values import ClientConfig, Hop
from .endpoint import Endpoint, Home, Stop
from .given import callback_of, conversation_of, prompt_from, seconds_of, with_params
from .observe import Watcher, Watchers
from .oneshot import OneShot
from .response import Response
from .routing import models_asked
from .session import OnPrefixBreak, Session
from .session.compaction import compact_at_of, token_limit
from .session.holding import Handles
from .session.prompt_source import Prompt, PromptSource, prompt_of
from .session.stops import Stops
from .structured import output_of
from .transport import HttpTransport
from .turn import Turn

#: How long closing waits for providers that do not say whether they let go; in seconds.
_LETTING_GO = 5.0


class AsyncClient:
    """All providers of one configuration. Use it as a context, or `close` it."""

    def __init__(
        self,
        providers: Mapping[str, ResolvedProvider],
        routes: Mapping[str, Sequence[Hop]] | None = None,
        *,
        watchers: Iterable[Watcher] = (),
        on_wait: Callable[[float], None] | None = None,
        transport: HttpTransport | None = None,
    ) -> None:
        """`watchers` get a record of every call; `on_wait` is told, in seconds, when our own limits
        are about to make one wait; `transport` takes the place of the usual one."""
        self._resolved = dict(providers)
        self._routes = dict(routes or {})
        self._watchers = Watchers(
            callback_of(watcher, f"watchers[{index}]") for index, watcher in enumerate(watchers)
        )
        callback_of(on_wait, "on_wait")
        self._on_wait = on_wait
        self._given = transport
        self._transports: dict[tuple[str | None, str | None], HttpTransport] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._home = Home()
        self._closed = False
        self._holders: set[Handles] = set()
        """Whatever providers hold for conversations: those that nobody remembers, too."""

    @classmethod
    def from_config(
        cls,
        source: str | Path | ClientConfig | Mapping[str, Any],
        *,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """From the path of `llm.yaml`, or from what it would say. What is wrong with it is told
        here, secrets that are missing included."""
        given: object = source
        if isinstance(given, ClientConfig):
            config = given
        elif isinstance(given, Mapping):
            config = ClientConfig.from_mapping(given)
        elif isinstance(given, str | Path):
            config = ClientConfig.read(given)
        else:
            kind = type(given).__name__
            raise InvalidConfig(f"the path of llm.yaml, or what it would say, not {kind}")
        return cls(resolve(config, environ=environ), config.routes, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of what providers hold for open conversations, and of all connections. No call
        can be made afterwards."""
        self._closed = True
        home = self._home.loop
        if home is None or home is asyncio.get_running_loop():
            await self._close()
        elif home.is_running():
            there = asyncio.run_coroutine_threadsafe(self._close(), home)
            await asyncio.wrap_future(there)
        # Otherwise that loop has ended, and its connections with it.
        self._transports.clear()
        self._endpoints.clear()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_LETTING_GO):
                await asyncio.gather(*(handles.release() for handles in list(self._holders)))
        except TimeoutError:
            pass  # what is held ends by itself
        finally:
            for transport in self._transports.values():
                await transport.close()

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        call: Call | Content,
        provider: str,
        *,
        model: str | None = None,
        output: Any = None,
        timeout: float | None = None,
    ) -> Turn:
        """A call on its own: await it for the answer, or go through it for the events.

        `provider` is a provider's or a route's name; `model` goes before the call's own; `output`
        is the form that the answer must have; `timeout` is for everything, in seconds.
        """
        timeout = seconds_of(timeout, "timeout")
        if not isinstance(call, Call):
            stops, hops = self._stops(provider, model)
            ir = PromptIR.chat(messages_of(call))
            call = Call(ir=ir, model=stops[0].model.name)
        else:
            stops, hops = self._stops(provider, model or call.model)
            if call.params.stream:
                # How it comes is decided by whoever awaits it, or goes through it.
                params = msgspec.structs.replace(call.params, stream=False)
                call = msgspec.structs.replace(call, params=params)
        if len(stops) > 1:
            whole = call
            stops = Stops(stops, hops).order(lambda: beginning(whole), time.monotonic())
        once = OneShot(
            call,
            stops,
            output=None if output is None else output_of(output),
            timeout=timeout,
            on_wait=self._on_wait,
            watchers=self._watchers,
        )
        return Turn(once, Asked(messages=(), timeout=timeout))

    async def complete(
        self,
        call: Call | Content,
        provider: str,
        *,
        model: str | None = None,
        output: Any = None,
        timeout: float | None = None,
    ) -> Response:
        """The answer to a call on its own."""
        return await self.send(call, provider, model=model, output=output, timeout=timeout)

    def stream(
        self,
        call: Call | Content,
        provider: str,
        *,
        model: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """The events of a call on its own."""
        return self.send(call, provider, model=model, timeout=timeout).__aiter__()

    def session(
        self,
        provider: str,
        *,
        model: str | None = None,
        system: str | Sequence[PromptBlock] | None = "",
        tools: ToolRegistry | Iterable[AnyTool] | None = None,
        messages: Conversation | Iterable[Message] = (),
        prompt: Prompt | Callable[[], Prompt] | None = None,
        compact_at: int | float | None = None,
        params: Params | None = None,
        cache: PromptCachePlan | None = None,
        extras: Extras | None = None,
        state: str | Callable[[], str] | None = None,
        on_prefix_break: OnPrefixBreak = "warn",
        store: bool | None = None,
        diagnose: bool = False,
        timeout: float | None = None,
        save: Callable[[Message], None] | None = None,
        **more: Any,
    ) -> Session:
        """A conversation. `provider` is a provider's or a route's name.

        `prompt` is everything but the history: a `PromptIR`, a `RenderedContext`, or a function
        that returns one and is called once a turn; a conversation in it is the history to start
        from. `system`, `messages`, `state` and `cache` are a short form of it, and cannot be
        combined with it. `state` is text for the end of every call, and never kept; `messages` is
        the saved history to continue, and `save` is given every message that is added to it.

        `compact_at` drops the oldest exchanges when a prompt exceeds so many tokens (an int), or
        that share of the model's context window (a float); `on_prefix_break` decides what happens
        before sending when the prefix would break;
        `store` lets a Responses provider keep the answers, so that only what is new is sent;
        `diagnose` asks the provider, too, why a prefix was missed. Other keywords are parameters of
        every call: `max_tokens`, `temperature`, `reasoning`, ….
        """
        if on_prefix_break not in get_args(OnPrefixBreak):
            raise InvalidRequest(
                f"must be one of {', '.join(get_args(OnPrefixBreak))}", path="on_prefix_break"
            )
        stops, hops = self._stops(provider, model)
        if prompt is not None:
            _check_alone(system=system, messages=messages, state=state, cache=cache)
            source = PromptSource(prompt_of(prompt))
        else:
            ir = prompt_from(system, cache)
            source = PromptSource(ir, state, from_keywords=True)
        compact_at = compact_at_of(compact_at)
        if compact_at is not None:
            for stop in stops:
                token_limit(compact_at, stop.model.profile)
        composing = Composing(
            tools=tools,
            params=with_params(params, more),
            extras=extras,
            store=store,
            diagnose=diagnose,
        )
        return Session(
            Stops(stops, hops),
            composing,
            source,
            messages=conversation_of(messages),
            compact_at=compact_at,
            on_prefix_break=on_prefix_break,
            timeout=seconds_of(timeout, "timeout"),
            on_wait=self._on_wait,
            save=callback_of(save, "save"),
            watchers=self._watchers,
            holders=self._holders,
        )

    # ── Providers ────────────────────────────────────────────────────────────────────────────────

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self._resolved)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is odd about the configuration, without being wrong."""
        return tuple(notice for one in self._resolved.values() for notice in one.notices)

    def _stops(self, name: str, model: str | None) -> tuple[tuple[Stop, ...], tuple[Hop, ...]]:
        """Where calls to a provider or route may go."""
        if name in self._routes:
            hops = tuple(self._routes[name])
            ends = [self._endpoint(hop.provider) for hop in hops]
            known = [model is not None and end.knows(model) for end in ends]
            names = models_asked(hops, model, known, [end.config.model for end in ends])
            stops = (end.stop(end.name_of(name)) for end, name in zip(ends, names, strict=True))
            return tuple(stops), hops
        return (self._stop(name, model),), ()

    def _stop(self, provider: str, model: str | None) -> Stop:
        endpoint = self._endpoint(provider)
        return endpoint.stop(endpoint.name_of(model))

    def _endpoint(self, name: str) -> Endpoint:
        if self._closed:
            raise InvalidRequest("the client is closed", path="client")
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            resolved = self._resolved.get(name)
            if resolved is None:
                known = ", ".join([*self._resolved, *self._routes]) or "none"
                raise InvalidRequest(f"no provider {name!r}; there are {known}", path="provider")
            endpoint = self._endpoints[name] = Endpoint(
                resolved, self._transport(resolved), self._home
            )
        return endpoint

    def _transport(self, resolved: ResolvedProvider) -> HttpTransport:
        """One for all providers that are reached the same way."""
        if self._given is not None:
            return self._given
        way = resolved.provider.proxy, resolved.provider.ca
        transport = self._transports.get(way)
        if transport is None:
            from .transport.over_aiohttp import AiohttpTransport

            transport = self._transports[way] = AiohttpTransport(proxy=way[0], ca=way[1])
        return transport


def _check_alone(**keywords: Any) -> None:
    """A prompt says it all: nothing that is a part of one may be given beside it."""
    places = {
        "system": "system_text or system_blocks",
        "messages": "a conversation segment (or turns)",
        "state": "a volatile tail segment (or state_turn)",
        "cache": "cache",
    }
    for name, value in keywords.items():
        empty = value is None or (isinstance(value, Sized) and not len(value))
        if not empty:
            raise InvalidRequest(
                f"prompt and {name} cannot be combined: the prompt has {places[name]} for that",
                path="prompt",
            )
