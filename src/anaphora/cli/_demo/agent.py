"""The agent of the story at one provider, its prompt laid out in one of two ways."""

from __future__ import annotations

from typing import Protocol

from anaphora.client.client import AsyncClient
from anaphora.client.dispatch import dispatch_all
from anaphora.client.response import Response
from anaphora.prompt import BlockMark, Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.values import Conversation, Message

from . import story
from .places import Place
from .story import Step
from .workspace import Workspace

_PARAMS = Params(max_tokens=1024)
_RATES = story.rates()


class Agent(Protocol):
    """Takes one turn after the other."""

    async def take(self, turn: int, step: Step) -> Response: ...


class Anaphoric:
    """As Anaphora lays it out: a session, and the state as a state."""

    def __init__(self, client: AsyncClient, place: Place) -> None:
        self.workspace = Workspace()
        self.registry = self.workspace.tools()
        self._turn = 0
        self.chat = client.session(
            f"{place.dialect} anaphora",
            model=place.model,
            system=(
                PromptBlock.plain("identity", story.IDENTITY),
                PromptBlock.plain("knowledge", story.KNOWLEDGE),
                PromptBlock.plain("rates", _RATES),
            ),
            tools=self.registry,
            state=self._state,
            params=_PARAMS,
        )

    async def take(self, turn: int, step: Step) -> Response:
        self._turn = turn
        ran = await self.chat.run(step.user or None, max_turns=1)
        return ran.responses[0]

    def _state(self) -> str:
        return story.state(self._turn, self.workspace.failing(), self.workspace.edited)


class Usual:
    """As it is often done: the state at the head of the system prompt, the tools in whatever order
    they came in, and, where there are markers, one at the end of the system prompt."""

    def __init__(self, client: AsyncClient, place: Place) -> None:
        self._client = client
        self._place = place
        self._workspace = Workspace()
        self._registry = self._workspace.tools()
        self._said = Conversation()

    async def take(self, turn: int, step: Step) -> Response:
        if step.user:
            self._said = self._said.append(Message.user(step.user))
        answered = await self._client.complete(
            self._call(turn), f"{self._place.dialect} usual", model=self._place.model
        )
        self._said = self._said.append(answered.reply.message)
        if answered.tool_calls:
            results = await dispatch_all(self._registry, answered.tool_calls)
            self._said = self._said.append(Message(role="tool", parts=results))
        return answered

    def _call(self, turn: int) -> Call:
        state = story.state(turn, self._workspace.failing(), self._workspace.edited)
        prompt = f"{state}\n\n{story.IDENTITY}\n{story.KNOWLEDGE}\n{_RATES}"
        tools = self._registry.tools()
        first = turn % len(tools)
        return Call(
            ir=PromptIR.chat(
                self._said,
                system=(PromptBlock.plain("prompt", prompt),),
                cache=PromptCachePlan(marks=(BlockMark(0),), messages=False),
            ),
            model=self._place.model,
            tools=tools[first:] + tools[:first],
            params=_PARAMS,
        )
