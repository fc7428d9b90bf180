"""The async client: from a configuration to calls and conversations.

async with AsyncClient.from_config("llm.yaml") as client:
    response = await client.complete(call, "anthropic-default")
    chat = client.session("anthropic-default", model="claude-sonnet-5-5")
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import msgspec

from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.redaction import hides_arguments, quoted
from anaphora.tools import ToolRegistry
from anaphora.values import AnyTool, Conversation, Event, Extras, Message, Notice

from .arguments import (
    Content,
    callback_of,
    choice_of,
    conversation_of,
    messages_of,
    prompt_from,
    seconds_of,
    tools_of,
    with_params,
)
from .config import ClientConfig, Hop
from .config.resolve import ResolvedProvider, resolve
from .config.secrets import Secret
from .endpoint import Endpoint, LoopAffinity, Target
from .observe import Watcher, Watchers
from .oneshot import OneShot
from .response import Response
from .routing import SessionRoute, conversation_key
from .session import OnPrefixBreak, Session
from .session.call_builder import CallBuilder
from .session.compaction import compact_at_of
from .session.handles import Handles
from .session.turn_prompt import Prompt, StateText, prompt_of
from .session.turns import PromptSource
from .structured import output_of
from .transport import HttpTransport
from .turn import Turn, TurnRequest

#: Seconds that closing waits for providers to delete handles.
_RELEASE_TIMEOUT = 5.0

#: Where a prompt holds what a keyword of a session stands for.
_PLACES = {
    "system": "system_text or system_blocks",
    "messages": "a conversation segment (or turns)",
    "state": "a volatile tail segment (or state_turn)",
    "cache": "cache",
}


class CallOptions(TypedDict, total=False):
    """The options of a single call: see `AsyncClient.send`."""

    model: str | None
    output: Any
    timeout: float | None


class AsyncClient:
    """All providers of one configuration. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        providers: Mapping[str, ResolvedProvider],
        routes: Mapping[str, Sequence[Hop]] | None = None,
        *,
        watchers: Iterable[Watcher] = (),
        on_wait: Callable[[float], None] | None = None,
        transport: HttpTransport | None = None,
    ) -> None:
        """`watchers` get a record of every call; `on_wait` is called with the seconds before rate
        limits delay one; `transport` replaces the default one."""
        self._resolved = dict(providers)
        self._routes = dict(routes or {})
        self._watchers = Watchers(
            callback_of(watcher, f"watchers[{index}]") for index, watcher in enumerate(watchers)
        )
        self._on_wait = callback_of(on_wait, "on_wait")
        self._transport = transport
        self._transports: dict[tuple[Secret | None, str | None], HttpTransport] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._affinity = LoopAffinity()
        self._closed = False
        self._holders: set[Handles] = set()
        """All handles that providers hold for conversations, also for those that were dropped."""

    @classmethod
    @hides_arguments
    def from_config(
        cls,
        source: str | Path | ClientConfig | Mapping[str, Any],
        *,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """From the path of `llm.yaml`, or its content. Raises for everything that is wrong with it,
        missing secrets included."""
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
        return cls(resolve(config, environ=environ), config.routes, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Releases what providers hold for open conversations, and closes all connections. No call
        can be made afterwards."""
        self._closed = True
        home = self._affinity.loop
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
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await asyncio.gather(*(handles.release() for handles in list(self._holders)))
        except TimeoutError:
            pass  # handles expire by themselves
        finally:
            for transport in self._transports.values():
                await transport.close()

    def send(
        self,
        call: Call | Content,
        provider: str,
        *,
        model: str | None = None,
        output: Any = None,
        timeout: float | None = None,
    ) -> Turn:
        """A single call: await it for the response, or iterate over it to stream.

        `provider` is the name of a provider or a route; `model` goes before the call's own;
        `output` is the form that the reply must have; `timeout` is for everything, in seconds.
        """
        timeout = seconds_of(timeout, "timeout")
        if not isinstance(call, Call):
            targets, hops = self._targets(provider, model)
            call = Call(ir=PromptIR.chat(messages_of(call)), model=targets[0].model)
        else:
            targets, hops = self._targets(provider, model or call.model)
            if call.params.stream:  # awaiting or iterating decides
                params = msgspec.structs.replace(call.params, stream=False)
                call = msgspec.structs.replace(call, params=params)
        if len(targets) > 1:
            key = conversation_key(call)
            targets = SessionRoute(targets, hops).order(lambda: key, time.monotonic())
        form = None if output is None else output_of(output)
        once = OneShot(call, targets, on_wait=self._on_wait, watchers=self._watchers)
        return Turn(once, TurnRequest(output=form, timeout=timeout))

    async def complete(
        self, call: Call | Content, provider: str, **options: Unpack[CallOptions]
    ) -> Response:
        """The response to a single call."""
        return await self.send(call, provider, **options)

    def stream(
        self, call: Call | Content, provider: str, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """The events of a single call."""
        return self.send(call, provider, **options).__aiter__()

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
        state: StateText = None,
        on_prefix_break: OnPrefixBreak = "warn",
        store: bool | None = None,
        diagnose: bool = False,
        timeout: float | None = None,
        save: Callable[[Message], None] | None = None,
        **more: Any,
    ) -> Session:
        """A conversation. `provider` is the name of a provider or a route.

        `prompt` is everything but the history: a `PromptIR`, a `RenderedContext`, or a function
        that returns one and is called once a turn; a conversation in it is the initial history.
        `system`, `messages`, `state` and `cache` are a short form of it, and cannot be combined
        with it. `state` is text at the end of every call that is never kept; `messages` is a saved
        history to continue, and `save` gets every message that is added to it.

        `compact_at` drops the oldest exchanges when a prompt exceeds so many tokens (an int), or
        that share of the model's context window (a float); `on_prefix_break` decides what happens
        before sending when the prefix would break; `store` lets a Responses provider store the
        replies, so that only new messages are sent; `diagnose` asks the provider, too, why a prefix
        was missed. Other keywords are parameters of every call: `max_tokens`, `temperature`, ….
        """
        choice_of(on_prefix_break, OnPrefixBreak, "on_prefix_break")
        targets, hops = self._targets(provider, model)
        source = _prompt_source(prompt, system=system, messages=messages, state=state, cache=cache)
        builder = CallBuilder(
            tools=tools_of(tools),
            params=with_params(params, more),
            extras=extras,
            store=store,
            diagnose=diagnose,
            compact_at=compact_at_of(compact_at, [target.profile for target in targets]),
        )
        return Session(
            SessionRoute(targets, hops),
            builder,
            source,
            messages=conversation_of(messages),
            on_prefix_break=on_prefix_break,
            timeout=seconds_of(timeout, "timeout"),
            on_wait=self._on_wait,
            save=callback_of(save, "save"),
            watchers=self._watchers,
            holders=self._holders,
        )

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self._resolved)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Oddities of the configuration that are no errors."""
        return tuple(notice for one in self._resolved.values() for notice in one.notices)

    def _targets(self, name: str, model: str | None) -> tuple[tuple[Target, ...], tuple[Hop, ...]]:
        if name not in self._routes:
            return (self._endpoint(name).target(model),), ()
        hops = tuple(self._routes[name])
        ends = [self._endpoint(hop.provider) for hop in hops]
        listing = [end for end in ends if model is not None and end.knows(model)]
        targets = []
        for hop, end in zip(hops, ends, strict=True):
            # A hop's own model goes first. A provider that does not list the requested one gets
            # its default instead; where none lists it, all get it.
            wanted = model if end in listing or not listing else end.config.model or model
            targets.append(end.target(hop.model or wanted))
        return tuple(targets), hops

    def _endpoint(self, name: str) -> Endpoint:
        if self._closed:
            raise InvalidRequest("the client is closed", path="client")
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            resolved = self._resolved.get(name)
            if resolved is None:
                known = ", ".join([*self._resolved, *self._routes]) or "none"
                raise InvalidRequest(
                    f"no provider {quoted(name)}; there are {known}", path="provider"
                )
            transport = self._transport
            if transport is None:
                transport = self._transport_for(resolved)
            endpoint = self._endpoints[name] = Endpoint(resolved, transport, self._affinity)
        return endpoint

    def _transport_for(self, resolved: ResolvedProvider) -> HttpTransport:
        """One transport for all providers with the same proxy and CA."""
        way = resolved.proxy, resolved.provider.ca
        transport = self._transports.get(way)
        if transport is None:
            from .transport.over_aiohttp import AiohttpTransport

            transport = self._transports[way] = AiohttpTransport(proxy=way[0], ca=way[1])
        return transport


def _prompt_source(
    prompt: Prompt | Callable[[], Prompt] | None,
    *,
    system: str | Sequence[PromptBlock] | None,
    messages: Any,
    state: StateText,
    cache: PromptCachePlan | None,
) -> PromptSource:
    """The source that the keywords of a session stand for."""
    if prompt is None:
        return PromptSource(prompt_from(system, cache), state, from_keywords=True)
    keywords = {"system": system, "messages": messages, "state": state, "cache": cache}
    for name, value in keywords.items():
        if value is not None and not (isinstance(value, Sized) and not len(value)):
            raise InvalidRequest(
                f"prompt and {name} cannot be combined: the prompt has {_PLACES[name]} for that",
                path="prompt",
            )
    return PromptSource(prompt_of(prompt))
