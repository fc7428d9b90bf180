"""The history of a session, and the source of its prompt."""

from __future__ import annotations

import copy
from collections.abc import Callable

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.values import Conversation, Message

from .prompt_source import Prompt, PromptMemory, PromptSource, State, TurnPrompt, prompt_of
from .prompt_source import turn_prompt as prompt_at

Save = Callable[[Message], None]


class SessionHistory:
    """The messages so far. Changed when a turn was answered, and by the app."""

    def __init__(self, source: PromptSource, messages: Conversation, save: Save | None) -> None:
        self._source = source
        self._memory = PromptMemory()
        self._conversation = self._answered = messages
        self._save = save
        self._unsaved: tuple[Message, ...] = ()
        """Messages that `save` has not taken yet: they come before anything newer."""
        if not callable(source.prompt) and not source.from_keywords:
            self.take(self.ask())

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
    def state(self) -> State:
        return self._source.state

    @state.setter
    def state(self, state: State) -> None:
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
            raise InvalidRequest(
                f"must be a Conversation, not {type(conversation).__name__}", path="conversation"
            )
        if not conversation.extends(self._conversation):
            self._memory = self._memory.without_history()
        self._conversation = conversation

    def ask(self) -> TurnPrompt:
        """The prompt of the next turn. Nothing of it is kept before the turn was answered."""
        return prompt_at(self._source.ask(), self._conversation, self._answered, self._memory)

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
        """Goes on from a turn's history without a call. What was appended since the last answer
        stays unanswered."""
        before, answered = self._conversation, self._answered
        pending = len(before) - len(answered) if before.extends(answered) else 0
        self._conversation = turn.history
        self._answered = turn.history.prefix(len(turn.history) - pending)
        used = self._memory.continuation
        self._memory = turn.memory
        if turn.ir.continuation is not None:  # which is still to be used
            self._memory = msgspec.structs.replace(turn.memory, continuation=used)

    def answered(
        self,
        turn: TurnPrompt | None,
        sent: Conversation,
        said: tuple[Message, ...],
        answer: Message,
    ) -> Conversation:
        """`sent` ends with what was `said`, and goes on as it is, without a copy; no turn: the app
        changed the conversation meanwhile. `save_pending` has to follow."""
        if turn is not None:
            self._conversation, self._memory = sent.append(answer), turn.memory
        else:
            self._conversation = self._conversation.append(*said, answer)
        self._answered = self._conversation
        self._unsaved += self._conversation[-len(said) - 1 :]
        return self._conversation

    def fork(self) -> SessionHistory:
        other = copy.copy(self)
        other._save, other._unsaved = None, ()
        return other

    def save_pending(self) -> None:
        """Gives messages to `save`, in order and without a gap: those that it failed to take come
        again first."""
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
