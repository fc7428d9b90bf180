"""The synchronous client: for scripts, notebooks, and code inside a running event loop.

    with Client.from_config("llm.yaml") as client:
        chat = client.session("anthropic-default", model="claude-sonnet-5-5")
        for piece in chat.send("Book me a flight to Rome").text: ...
        response = chat.send("And back?").result()

Every call runs on the async client, in one background thread for each `Client`. Ctrl-C, and leaving
a loop early, cancel the call.
"""

from __future__ import annotations

import weakref
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, Unpack, overload

from anaphora.prompt import Call, Compaction
from anaphora.prompt.context import TokenCount
from anaphora.redaction import hides_arguments
from anaphora.values import Conversation, Event, Message, MessageLike, Notice

from .arguments import not_copyable, prompts_of, wrong_client
from .background import Background, SyncFanOut, SyncRun, SyncSummary, SyncTurn
from .budget import Budget, new_budget
from .client import AsyncClient
from .config import ClientConfig
from .content import Content
from .observe import CallAudit
from .options import (
    CallOptions,
    ClientOptions,
    MapOptions,
    Prompt,
    RunOptions,
    SessionOptions,
    StateText,
    SummaryOptions,
    TurnOptions,
)
from .response import Output, Response
from .session import Preview, Session
from .structured import Structured

if TYPE_CHECKING:
    from .counting import CountedTokens

T = TypeVar("T")


class Client:
    """`AsyncClient` without async. Use it as a context manager, or `close` it."""

    @hides_arguments
    def __init__(self, client: AsyncClient | None = None) -> None:
        if not isinstance(client, AsyncClient):
            raise wrong_client(type(self).__name__, client)
        self._client = client
        self._background = Background("anaphora")
        # A client that was not closed ends its thread when it is collected, or at exit.
        self._close = weakref.finalize(self, self._background.close, client.close)

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
        return cls(AsyncClient.from_config(source, environ=environ, **options))

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **options: Unpack[ClientOptions]
    ) -> Self:
        """As `AsyncClient.from_env`."""
        return cls(AsyncClient.from_env(environ, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels calls in flight, closes all connections and ends the thread."""
        self._close()

    def budget(self, *, usd: Decimal | float | str, allow_unpriced: bool = False) -> Budget:
        """As `AsyncClient.budget`."""
        return new_budget(usd, allow_unpriced)

    @property
    def audit(self) -> CallAudit | None:
        """As `AsyncClient.audit`."""
        return self._client.audit

    @property
    def providers(self) -> tuple[str, ...]:
        return self._client.providers

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices about the configuration that are not errors."""
        return self._client.notices

    @overload
    def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: None = None,
        **options: Unpack[CallOptions],
    ) -> Response[None]: ...
    @overload
    def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[CallOptions],
    ) -> Response[Output]: ...
    @overload
    def complete(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[CallOptions],
    ) -> Response[Any]: ...
    def complete(
        self,
        content: Any = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> Response[Any]:
        """As `AsyncClient.complete`."""
        send = self._client.send
        return self._background.call(lambda: send(content, provider, output=output, **options))

    def stream(
        self,
        content: Call | Content | None = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> Generator[Event, None, None]:
        """As `AsyncClient.stream`."""
        given: Any = content
        return iter(self.send(given, provider, output=output, **options))

    @overload
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncTurn[Output]: ...
    @overload
    def send(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[CallOptions],
    ) -> SyncTurn[Any]: ...
    def send(
        self,
        content: Any = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> SyncTurn[Any]:
        """As `AsyncClient.send`."""
        do, send = self._background.do, self._client.send
        return SyncTurn(
            self._background, self, do(lambda: send(content, provider, output=output, **options))
        )

    def count_tokens(
        self,
        content: Call | Content,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> CountedTokens:
        """As `AsyncClient.count_tokens`."""
        count = self._client.count_tokens
        return self._background.call(lambda: count(content, provider, output=output, **options))

    @overload
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
        **options: Unpack[MapOptions],
    ) -> SyncFanOut[Output]: ...
    @overload
    def map(
        self,
        prompts: Iterable[Call | Content],
        provider: str | None = None,
        *,
        output: object,
        **options: Unpack[MapOptions],
    ) -> SyncFanOut[Any]: ...
    def map(
        self,
        prompts: Any = None,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[MapOptions],
    ) -> SyncFanOut[Any]:
        """As `AsyncClient.map`. `on_progress` is called in the client's thread."""
        do, fan_out = self._background.do, self._client.map
        prompts = list(prompts_of(prompts))  # a generator of the app runs in its own thread
        return SyncFanOut(
            self._background, self, do(lambda: fan_out(prompts, provider, output=output, **options))
        )

    def session(
        self, provider: str | None = None, **options: Unpack[SessionOptions]
    ) -> SyncSession:
        """As `AsyncClient.session`."""
        do = self._background.do
        return SyncSession(self, do(lambda: self._client.session(provider, **options)))


class _Attribute(Generic[T]):
    """An attribute of the async session."""

    def __init__(self, *, assigned: bool = False) -> None:
        self._assigned = assigned

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, session: SyncSession, owner: type) -> T:
        value: T = getattr(Session if session is None else session._session, self._name)
        return value

    def __set__(self, session: SyncSession, value: T) -> None:
        if not self._assigned:
            raise AttributeError(f"{self._name} of a session cannot be assigned")
        setattr(session._session, self._name, value)


class SyncSession:
    """`Session` without async: its methods and attributes are those of `Session`. A function as
    `prompt` or `state` is called in the client's thread."""

    prompt = _Attribute[Prompt | Callable[[], Prompt]](assigned=True)
    conversation = _Attribute[Conversation](assigned=True)
    state = _Attribute[StateText](assigned=True)
    last = _Attribute[Response | None]()
    cost_usd = _Attribute[Decimal | None]()
    messages = _Attribute[tuple[Message, ...]]()
    provider = _Attribute[str]()
    model = _Attribute[str]()
    id = _Attribute[str | None]()

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session
        self._background = background = client._background
        self._do, self._call = background.do, background.call

    @overload
    def send(
        self,
        content: Content | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
        **options: Unpack[TurnOptions],
    ) -> SyncTurn[Output]: ...
    @overload
    def send(
        self, content: Content | None = None, *, output: object, **options: Unpack[TurnOptions]
    ) -> SyncTurn[Any]: ...
    def send(
        self, content: Content | None = None, *, output: Any = None, **options: Unpack[TurnOptions]
    ) -> SyncTurn[Any]:
        """As `Session.send`: iterate over the events, or get the `result()`."""
        turn = self._session.send(content, output=output, **options)
        return SyncTurn(self._background, self._client, turn)

    @overload
    def run(
        self,
        content: Content | None = None,
        *,
        output: type[Output] | Structured[Output] | None = None,
        **options: Unpack[RunOptions],
    ) -> SyncRun[Output]: ...
    @overload
    def run(
        self, content: Content | None = None, *, output: object, **options: Unpack[RunOptions]
    ) -> SyncRun[Any]: ...
    def run(
        self, content: Content | None = None, *, output: Any = None, **options: Unpack[RunOptions]
    ) -> SyncRun[Any]:
        """As `Session.run`: iterate over the events, or get the `result()`."""
        run = self._session.run(content, output=output, **options)
        return SyncRun(self._background, self._client, run)

    def preview(
        self, content: Content | None = None, *, output: Any = None, **options: Unpack[TurnOptions]
    ) -> Preview:
        return self._do(lambda: self._session.preview(content, output=output, **options))

    def prewarm(self) -> Response:
        return self._call(self._session.prewarm)

    def append(self, *messages: MessageLike) -> None:
        self._do(lambda: self._session.append(*messages))

    def fork(self, *, id: str | None = None) -> SyncSession:
        return SyncSession(self._client, self._do(lambda: self._session.fork(id=id)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def load(self) -> None:
        self._call(self._session.load)

    def forget(self) -> None:
        self._call(self._session.forget)

    def close(self) -> None:
        self._call(self._session.close)

    def compact(
        self, budget: int, *, summary: str | Message | None = None, tokens: TokenCount | None = None
    ) -> Compaction:
        return self._do(lambda: self._session.compact(budget, summary=summary, tokens=tokens))

    def summarize(self, budget_tokens: int, **options: Unpack[SummaryOptions]) -> SyncSummary:
        """As `Session.summarize`: iterate over the events, or get the `result()`. `on_cold` is
        called in the client's thread."""
        summary = self._session.summarize(budget_tokens, **options)
        return SyncSummary(self._background, self._client, summary)
