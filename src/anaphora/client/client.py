"""The async client: from a configuration to calls and conversations.

async with AsyncClient.from_config("llm.yaml") as client:
    response = await client.complete("Hello?", model="claude-sonnet-5-5")
    chat = client.session("anthropic-default", model="claude-sonnet-5-5")
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, overload

from msgspec.structs import replace

from anaphora.cache.verdict.judgement import ComparedCalls
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call
from anaphora.redaction import hides_arguments
from anaphora.values import Event, Notice

from .arguments import (
    audit_of,
    callback_of,
    choice_of,
    flag_of,
    not_copyable,
    prompts_of,
    seconds_of,
    watchers_of,
    wrong_client,
)
from .budget import Budget, budget_of, new_budget
from .choice import check_content, check_order
from .cold_guard import cold_guard_of
from .config import ClientConfig, Hop
from .config.environment import Environment
from .config.resolve import resolve
from .config.secrets import ResolvedProvider
from .content import Content
from .conversations import Conversations
from .observe import CallAudit, Watcher, Watchers
from .oneshot import OneShot
from .options import (
    CALL_KEYWORDS,
    CLIENT_KEYWORDS,
    MAP_KEYWORDS,
    SESSION_KEYWORDS,
    CallOptions,
    ClientOptions,
    ColdOptions,
    MapOptions,
    OnPrefixBreak,
    SessionOptions,
    check_keywords,
)
from .parameters import call_of
from .pending import call_site
from .pool import ChosenTargets, ProviderPool, TargetChooser
from .response import Output
from .routing import SessionRoute, conversation_key
from .session import Session
from .session.opening import ClientSessions
from .structured import Structured, output_of
from .target import Target
from .transport import HttpTransport
from .turn import Turn

if TYPE_CHECKING:
    from .counting import CountedTokens
    from .fan_out import FanOut
    from .fan_out.gate import CallGate


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
        **cold: Unpack[ColdOptions],
    ) -> None:
        """`watchers` get a record of every call, and `audit`, an `AuditLog`, keeps a row of it;
        `on_wait` is called with the seconds of a delay by rate limits, before the delay;
        `transport` replaces the default one; `conversations` keeps sessions with an id: a mapping
        or an async store such as Redis, by default memory of this process; `on_cold` and
        `cold_above_usd` are those of all sessions and calls."""
        if not isinstance(providers, Mapping) or not all(
            isinstance(each, ResolvedProvider) for each in providers.values()
        ):
            raise wrong_client(type(self).__name__, providers)
        self._pool = ProviderPool(dict(providers), dict(routes or {}), transport=transport)
        self._chooser = TargetChooser(self._pool)
        self._watchers = Watchers(watchers_of(watchers), audit_of(audit))
        self._on_wait = callback_of(on_wait, "on_wait")
        self._closed = False
        self._sessions = ClientSessions(self._watchers, self._on_wait, conversations)
        self._cold = self._sessions.cold = cold_guard_of(cold)
        self._compared = ComparedCalls()
        self._process = os.getpid()
        self._site = call_site()

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
        """From the path of `llm.yaml`, or its content. Raises for every error in it, missing
        secrets included."""
        check_keywords(options, CLIENT_KEYWORDS)
        config = ClientConfig.of(source)
        client = cls(resolve(config, environ=environ), config.routes, **options)
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

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "AsyncClient is used with `async with`; with `with`, Client is the one without async"
        )

    def __exit__(self, *exc_info: object) -> None: ...

    def __del__(self) -> None:
        site = getattr(self, "_site", None)
        if site is None or self._closed or sys.is_finalizing() or not self._pool.has_connections:
            return
        if os.getpid() != self._process:
            return  # after a fork, connections are the parent's
        made = f"AsyncClient made at {site.file}:{site.line} was not closed"
        problem = f"{made}: write `async with`, or `await client.close()`"
        logging.getLogger("anaphora").warning("%s", problem)
        warnings.warn_explicit(problem, ResourceWarning, site.file, site.line)

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
        # Otherwise that loop has ended, and so have its connections.
        self._pool.forget()

    async def _close(self) -> None:
        try:
            await self._sessions.close()
        finally:
            await self._pool.close()

    @overload
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
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
        content: Any = None,
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
        check_content(content, options.get("model"), options)
        if options:
            check_keywords(options, CALL_KEYWORDS)
        cold = cold_guard_of(options, self._cold)
        once = self.single_call(content, provider, output=output, **options)
        if cold is not None:
            once.guard(cold, self._compared)
        return Turn(once, once.request)

    @overload
    def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: None = None,
        **options: Unpack[CallOptions],
    ) -> Turn[None]: ...
    @overload
    def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[CallOptions],
    ) -> Turn[Output]: ...
    @overload
    def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[CallOptions],
    ) -> Turn[Any]: ...
    def complete(
        self,
        content: Any = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> Turn[Any]:
        """The response to a single call: see `send`."""
        turn = self.send(content, provider, output=output, **options)
        turn._verb = "complete"
        return turn

    def stream(
        self,
        content: Call | Content | None = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Event, None]:
        """The events of a single call: see `send`."""
        given: Any = content
        return self.send(given, provider, output=output, **options).__aiter__()

    async def count_tokens(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> CountedTokens:
        """The input tokens of a call, which is not made: see `send`. The provider counts them,
        without charge, if it has an endpoint for it; otherwise they are estimated, with a
        notice."""
        from .counting import count_call

        check_content(content, options.get("model"), options)
        check_keywords(options, CALL_KEYWORDS)
        once = self.single_call(content, provider, output=output, **options)
        return await count_call(once.target, once.prompt)

    @overload
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
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
        prompts: Any = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[MapOptions],
    ) -> FanOut[Any]:
        """A single call for each prompt, which may be anything that `send` takes: await it for the
        result, or iterate over it for the items as they arrive.

        Prompts with the same beginning form a group: one call writes it to the cache, and the
        others are sent when they can read it. A call that fails is an item with an error;
        `on_cold` raises before the first one is sent.
        `MapOptions` describes the keywords; those of `send` apply to every call.
        """
        from .fan_out import FanOut
        from .fan_out.values import split_options

        if options:
            check_keywords(options, MAP_KEYWORDS)
        settings, on_progress, call_options = split_options(options)
        settings = replace(settings, cold=cold_guard_of(call_options, self._cold))
        form = None if output is None else output_of(output)
        calls: list[OneShot] = []
        for index, prompt in enumerate(prompts_of(prompts)):
            try:
                calls.append(self.single_call(prompt, provider, output=form, **call_options))
            except InvalidRequest as problem:
                raise problem.within(f"prompts[{index}]") from None
        return FanOut(calls, settings, on_progress, self._compared)

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
        once = OneShot(
            call,
            targets,
            on_wait=self._on_wait,
            watchers=self._watchers,
            compared=self._compared_calls(options),
            output=None if output is None else output_of(output),
            timeout=seconds_of(options.get("timeout"), "timeout"),
        )
        once.budget = budget_of(options.get("budget"))
        return once

    @cached_property
    def call_gate(self) -> CallGate:
        """A gate for concurrent calls that a framework makes one by one. Use it in this client's
        event loop."""
        from .fan_out.gate import CallGate

        return CallGate(self)

    def _compared_calls(self, options: CallOptions) -> ComparedCalls | None:
        """The earlier calls of conversations, if this is one of them."""
        is_one = flag_of(options.get("conversation", False), "conversation")
        return self._compared if is_one else None

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
        choice_of(options.get("on_prefix_break", "warn"), OnPrefixBreak, "on_prefix_break")
        return self._sessions.open(self._targets(provider, options.get("model")), options)

    def budget(self, *, usd: Decimal | float | str, allow_unpriced: bool = False) -> Budget:
        """A limit for all calls made inside the block that it opens, with those of tools and tasks:
        before each attempt its maximum cost is held, and replaced by the bill afterwards. It counts
        in the budgets around it as well. A call that could exceed one raises `BudgetExceeded`, and
        so does a model without a price, unless `allow_unpriced`: its calls count as 0."""
        return new_budget(usd, allow_unpriced)

    @property
    def audit(self) -> CallAudit | None:
        """The audit log of this client's calls. The client does not close it."""
        return self._watchers.audit

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self._pool.providers)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices about the configuration that are not errors."""
        return tuple(notice for one in self._pool.providers.values() for notice in one.notices)

    def _routed(
        self, content: Call | Content, provider: str | None, options: CallOptions
    ) -> tuple[Call, tuple[Target, ...]]:
        """The call made from the arguments of `send`, and its targets."""
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
