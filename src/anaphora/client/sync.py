"""The client for those who cannot await: scripts, notebooks, code inside of a running loop.

    with Client.from_config("llm.yaml") as client:
        chat = client.session("anthropic-default", model="claude-sonnet-5-5")
        for event in chat.send("Book me a flight to Rome"): ...
        answered = chat.send("And back?").reply()

A thin face: everything is done by the async client, in one background thread for each `Client`.
Ctrl-C, and a loop that is left early, cancel the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anaphora.prompt import Call, Compaction
from anaphora.values import Conversation, Event, Message, Notice, Reply, ToolResult

from .background import Background
from .client import AsyncClient
from .config.values import ClientConfig
from .response import Response
from .session import Content, Preview, Session, Turn
from .session.prompt_source import Prompt
from .session.running import Run, RunResult


class Client:
    """`AsyncClient`, without async. Use it as a context, or `close` it."""

    def __init__(self, client: AsyncClient, background: Background | None = None) -> None:
        self._client = client
        self._background = background or Background("anaphora")
        # A client that was forgotten ends its thread when it is collected, or at exit.
        self._close = weakref.finalize(self, self._background.close, client.close)

    @classmethod
    def from_config(
        cls, source: str | Path | ClientConfig | dict[str, Any], **options: Any
    ) -> Self:
        """As `AsyncClient.from_config`."""
        return cls(AsyncClient.from_config(source, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what is under way, and returns when connections and thread are gone."""
        self._close()

    @property
    def providers(self) -> tuple[str, ...]:
        return self._client.providers

    def complete(self, call: Call | Content, provider: str, **options: Any) -> Response:
        """As `AsyncClient.complete`."""
        return self._background.call(lambda: self._client.complete(call, provider, **options))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is odd about the configuration, without being wrong."""
        return self._client.notices

    def stream(
        self, call: Call | Content, provider: str, **options: Any
    ) -> Generator[Event, None, None]:
        """As `AsyncClient.stream`."""
        return iter(self.send(call, provider, **options))

    def send(self, call: Call | Content, provider: str, **options: Any) -> SyncTurn:
        """As `AsyncClient.send`."""
        do = self._background.do
        return SyncTurn(self, do(lambda: self._client.send(call, provider, **options)))

    def session(self, provider: str, **options: Any) -> SyncSession:
        """As `AsyncClient.session`."""
        do = self._background.do
        return SyncSession(self, do(lambda: self._client.session(provider, **options)))


class SyncTurn:
    """A turn that is made when its events are gone through, or its reply is asked for; once."""

    def __init__(self, client: Client, turn: Turn) -> None:
        self._client = client
        self._turn = turn

    def __iter__(self) -> Generator[Event, None, None]:
        return self._client._background.iterate(self._turn.__aiter__)

    def reply(self) -> Response:
        """The whole answer: what awaiting the turn gives."""
        return self.answered or self._client._background.call(lambda: self._turn)

    @property
    def answered(self) -> Response | None:
        """The answer, once there is one."""
        return self._turn.answered


class SyncRun:
    """A run of turns and tools, made when its events are gone through, or its end is asked for."""

    def __init__(self, client: Client, running: Run) -> None:
        self._client = client
        self._running = running

    def __iter__(self) -> Generator[Event | ToolResult, None, None]:
        return self._client._background.iterate(self._running.__aiter__)

    def result(self) -> RunResult:
        """What it came to: what awaiting the run gives."""
        return self.ran or self._client._background.call(lambda: self._running)

    @property
    def ran(self) -> RunResult | None:
        """What it came to, once it has ended."""
        return self._running.ran


class SyncSession:
    """`Session`, without async."""

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session

    def send(self, content: Content | None = None, **options: Any) -> SyncTurn:
        """As `Session.send`: go through the events, or ask for the `reply()`."""
        return SyncTurn(self._client, self._session.send(content, **options))

    def run(self, content: Content | None = None, **bounds: Any) -> SyncRun:
        """As `Session.run`: go through the events, or ask for the `result()`."""
        return SyncRun(self._client, self._session.run(content, **bounds))

    def preview(self, content: Content | None = None, **params: Any) -> Preview:
        """What the next call would read, write and cost; nothing is sent."""
        return self._client._background.do(lambda: self._session.preview(content, **params))

    def prewarm(self) -> Response:
        """Writes the beginning of the conversation to the provider's cache."""
        return self._client._background.call(self._session.prewarm)

    def append(self, *messages: Message) -> None:
        self._client._background.do(lambda: self._session.append(*messages))

    def recall(self, reply: Reply, **call: Any) -> bool:
        """As `Session.recall`."""
        return self._client._background.do(lambda: self._session.recall(reply, **call))

    def fork(self) -> SyncSession:
        """Another conversation with the same past."""
        return SyncSession(self._client, self._client._background.do(self._session.fork))

    def close(self) -> None:
        """Lets go of what the provider holds for this conversation."""
        self._client._background.call(self._session.close)

    def compact(self, budget: int, **options: Any) -> Compaction:
        """As `Session.compact`."""
        return self._client._background.do(lambda: self._session.compact(budget, **options))

    @property
    def prompt(self) -> Prompt | Callable[[], Prompt]:
        """What every turn is made from, besides the history. A function is called in the client's
        thread."""
        return self._session.prompt

    @prompt.setter
    def prompt(self, prompt: Prompt | Callable[[], Prompt]) -> None:
        def assign() -> None:
            self._session.prompt = prompt

        self._client._background.do(assign)

    @property
    def conversation(self) -> Conversation:
        """The history; may be assigned."""
        return self._session.conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        self._session.conversation = conversation

    @property
    def state(self) -> str | Callable[[], str] | None:
        """Text at the end of every call, behind everything that is cached; never kept."""
        return self._session.state

    @state.setter
    def state(self, state: str | Callable[[], str] | None) -> None:
        self._session.state = state

    @property
    def last(self) -> Response | None:
        """The newest answer."""
        return self._session.last

    @property
    def cost_usd(self) -> Decimal | None:
        """What this conversation has cost so far; None once a price was unknown."""
        return self._session.cost_usd

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._session.messages

    @property
    def provider(self) -> str:
        return self._session.provider

    @property
    def model(self) -> str:
        return self._session.model
