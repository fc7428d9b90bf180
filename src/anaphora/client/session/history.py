"""The history of a session, and the source of its prompt."""

from __future__ import annotations

import copy
from collections.abc import Callable

import msgspec

from anaphora.client.arguments import wrong_type
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptIR, RenderedContext, Segment
from anaphora.values import Conversation, Message, SegmentRole

from .turn_prompt import (
    Prompt,
    PromptMemory,
    StateText,
    TurnPrompt,
    prompt_of,
    returned_prompt,
    turn_prompt,
)

Save = Callable[[Message], None]

_HISTORY = SegmentRole.CONVERSATION
_TAIL = SegmentRole.VOLATILE_TAIL
_PROMPTS = (PromptIR, RenderedContext)


class PromptSource(msgspec.Struct, frozen=True, eq=False):
    """Where a session's prompts come from: a `PromptIR`, a `RenderedContext`, or a function that
    returns one and is called once a turn. The keywords `system=`, `state=` and `cache=` are a short
    form of a `PromptIR`. Shared by forks."""

    prompt: Prompt | Callable[[], Prompt]
    state: StateText = None
    """Text at the end of every call; only with a prompt from keywords."""
    from_keywords: bool = False

    def current(self) -> Prompt:
        """The prompt of the next turn. Calls the app's function, if there is one."""
        prompt = self.prompt
        if not isinstance(prompt, _PROMPTS):
            prompt = returned_prompt(prompt())
        state = self.state
        text = state() if callable(state) else state
        if not text:
            return prompt
        tail = Segment.of(_TAIL, Message.user(text))
        return msgspec.structs.replace(prompt, segments=(tail,))


class SessionHistory:
    """The messages so far. Changed when a turn was answered, and by the app."""

    def __init__(self, source: PromptSource, messages: Conversation, save: Save | None) -> None:
        self._source = source
        self._memory = PromptMemory()
        self._conversation = self._answered = messages
        self._save = save
        self._unsaved: tuple[Message, ...] = ()
        """Messages that `save` has not taken yet; they come before newer ones."""
        if not callable(source.prompt) and not source.from_keywords:
            self.take(self.next_prompt())

    @property
    def prompt(self) -> Prompt | Callable[[], Prompt]:
        return self._source.prompt

    @prompt.setter
    def prompt(self, prompt: Prompt | Callable[[], Prompt]) -> None:
        if self._source.state is not None:
            raise InvalidRequest(
                "prompt and state cannot be combined: set state to None, and put the state into"
                " the prompt (state_turn, or a volatile tail segment)",
                path="prompt",
            )
        self._source = PromptSource(prompt_of(prompt))

    @property
    def state(self) -> StateText:
        return self._source.state

    @state.setter
    def state(self, state: StateText) -> None:
        if state is not None and not self._source.from_keywords:
            raise InvalidRequest(
                "state and prompt cannot be combined: put the state into the prompt (state_turn,"
                " or a volatile tail segment)",
                path="state",
            )
        self._source = msgspec.structs.replace(self._source, state=state)

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        if not isinstance(conversation, Conversation):
            raise wrong_type("a Conversation", conversation, "conversation")
        if not conversation.extends(self._conversation):
            self._memory = self._memory.without_history()
        self._conversation = conversation

    def next_prompt(self) -> TurnPrompt:
        """The prompt of the next turn. Nothing of it is kept before the turn was answered."""
        prompt, memory = self._source.current(), self._memory
        if memory.boundary is None and isinstance(prompt, PromptIR) and _is_plain(prompt):
            return TurnPrompt(ir=prompt, history=self._conversation, memory=memory)
        return turn_prompt(prompt, self._conversation, self._answered, memory)

    def append(self, messages: tuple[Message, ...]) -> None:
        """Where `save` fails, nothing is added."""
        before = self._conversation
        grown = self._conversation = before.append(*messages)
        added = grown[len(before) :]
        self._unsaved += added
        try:
            self.save_pending()
        except BaseException:
            self._unsaved = tuple(one for one in self._unsaved if one not in added)
            if self._conversation is grown:
                self._conversation = before
            raise

    def keep(self, message: Message) -> None:
        """The message stays in the conversation, also where `save` fails."""
        self._conversation = self._conversation.append(message)
        self._unsaved += self._conversation[-1:]
        self.save_pending()

    def take(self, turn: TurnPrompt) -> None:
        """Continues from a turn's history without a call. What was appended since the last reply
        stays unanswered."""
        before, answered = self._conversation, self._answered
        pending = len(before) - len(answered) if before.extends(answered) else 0
        self._conversation = turn.history
        self._answered = turn.history.prefix(len(turn.history) - pending)
        used = self._memory.continuation
        self._memory = turn.memory
        if turn.ir.continuation is not None:  # not used yet
            self._memory = msgspec.structs.replace(turn.memory, continuation=used)

    def answered(
        self,
        turn: TurnPrompt | None,
        sent: Conversation,
        added: tuple[Message, ...],
        reply: Message,
    ) -> Conversation:
        """Adds a reply. `sent` ends with the messages that the turn `added` and is continued
        without a copy; no turn: the app changed the conversation meanwhile. `save_pending` has to
        follow."""
        if turn is not None:
            self._conversation, self._memory = sent.append(reply), turn.memory
        else:
            self._conversation = self._conversation.append(*added, reply)
        self._answered = self._conversation
        if self._save is not None:
            self._unsaved += self._conversation[-len(added) - 1 :]
        return self._conversation

    def fork(self) -> SessionHistory:
        other = copy.copy(self)
        other._save, other._unsaved = None, ()
        return other

    def save_pending(self) -> None:
        """Passes messages to `save`, in order and without a gap: those that failed come first."""
        if self._save is None:
            self._unsaved = ()
            return
        while self._unsaved:
            message, self._unsaved = self._unsaved[0], self._unsaved[1:]
            try:
                self._save(message)
            except BaseException:
                self._unsaved = (message, *self._unsaved)
                raise


def _is_plain(prompt: PromptIR) -> bool:
    """Whether a prompt leaves the history as it is: no conversation, boundary or continuation."""
    if prompt.continuation is not None or prompt.cache.frozen_through is not None:
        return False
    return all(segment.role is not _HISTORY for segment in prompt.segments)
