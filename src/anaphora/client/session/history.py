"""The history of a session: its messages, which of them were answered and saved, and what a
compaction dropped. A prompt from the app may contain the messages that open it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from decimal import Decimal

import msgspec

from anaphora.client.arguments import missing_result
from anaphora.client.failures import reported
from anaphora.client.in_flight import TurnRequest
from anaphora.client.target import Target
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptIR
from anaphora.values import Conversation, Message, Notice, Opaque, ToolResult
from anaphora.values.conversation import unanswered
from anaphora.wording import counted

from .call_builder import PromptSource, is_plain
from .saved import SavedCompaction, SavedConversation
from .turn_prompt import PromptMemory, TurnPrompt, conversation_of, turn_prompt


class SessionHistory:
    """The messages of a conversation, and the source of its prompts."""

    def __init__(
        self,
        source: PromptSource,
        messages: Conversation,
        save: Callable[[Message], None] | None,
        notices: tuple[Notice, ...] = (),
    ) -> None:
        """`notices` are given with the next answer."""
        self.source = source
        self.messages = self.answered = self.sent_from = messages
        """The history now, after the last turn, and at the start of the turn in flight."""
        self.memory = PromptMemory()
        self.notices = notices
        self._save = save
        self._unsaved: tuple[Message, ...] = ()
        """Messages that `save` has not accepted yet; they are saved before newer ones."""
        self.compaction: SavedCompaction | None = None
        """What was dropped of the app's history, if the conversation is stored."""
        if not callable(source.prompt) and not source.from_keywords:
            self.take(self.next_prompt())  # its conversation is the initial history

    def fork(self, *, stored: bool) -> SessionHistory:
        """The same messages; later ones are separate, and are not saved."""
        other = copy.copy(self)
        other._save, other._unsaved = None, ()
        if not stored:
            other.compaction = None
        return other

    def next_prompt(self) -> TurnPrompt:
        """The prompt of the next turn. It is only kept once the turn is answered."""
        prompt, memory = self.source.current(), self.memory
        if memory.boundary is None and isinstance(prompt, PromptIR) and is_plain(prompt):
            return TurnPrompt(ir=prompt, history=self.messages, memory=memory)
        turns = conversation_of(prompt)
        if not turns or any(_is_same(turns, own) for own in (self.messages, self.answered)):
            return turn_prompt(prompt, self.messages, memory)
        if memory.opening is None and not self.answered:
            memory = msgspec.structs.replace(memory, opening=turns)
            return turn_prompt(prompt, self._left_of(turns).append(*self.messages), memory)
        if memory.opening is None or not _is_same(turns, memory.opening):
            raise InvalidRequest(
                f"its {counted(len(turns), 'message')} are not the session's own: a prompt's"
                " messages open the history, which the session owns from then on. Return none of"
                " them, or send each prompt with its whole history by"
                " client.send(call, conversation=True)",
                path="prompt",
            )
        return turn_prompt(prompt, self.messages, memory)

    def take(self, turn: TurnPrompt) -> None:
        """Continues from a turn's history without a call. Messages since the last reply stay
        unanswered."""
        before, answered = self.messages, self.answered
        pending = len(before) - len(answered) if before.extends(answered) else 0
        self.messages = turn.history
        self.answered = turn.history.prefix(len(turn.history) - pending)
        used = self.memory.continuation
        self.memory = turn.memory
        if turn.ir.continuation is not None:  # not used yet
            self.memory = msgspec.structs.replace(turn.memory, continuation=used)

    # ── Checks ───────────────────────────────────────────────────────────────────────────────────

    def check_turn(self, request: TurnRequest) -> None:
        """Raises if every provider would refuse the messages. A prompt from the app may contain
        what the history lacks."""
        if request.prewarm or not self.source.from_keywords:
            return
        history, added = self.messages, request.messages
        if not added and not history and not self.source.state:
            raise InvalidRequest("there is nothing to send yet; give a text", path="content")
        if not (calls := unanswered(history)):
            return
        parts = (part for message in added for part in message.parts)
        results = {part.call_id for part in parts if isinstance(part, ToolResult)}
        missing = [call for call in calls if call.id not in results]
        if missing:
            raise missing_result(missing[0])

    def check_unfinished(self, *, paused: bool) -> None:
        """Raises if the model has answered, so that a run without content has nothing to
        continue. A reply that the provider `paused` ends with a part to continue."""
        history = self.messages
        if not self.source.from_keywords or self.source.state or not history:
            return
        last = history[-1]
        if last.role != "assistant" or unanswered(history):
            return
        if not paused and not (last.parts and isinstance(last.parts[-1], Opaque)):
            reason = "the conversation ends with the model's answer: there is nothing to continue"
            raise InvalidRequest(f"{reason}; give a text", path="content")

    # ── New messages ─────────────────────────────────────────────────────────────────────────────

    def replace(self, messages: Conversation) -> None:
        if not messages.extends(self.messages):
            self.memory = msgspec.structs.replace(self.memory, boundary=None)
        self.messages = messages

    def append(self, *messages: Message) -> None:
        """Adds messages without a call. If `save` fails, nothing is added."""
        before = self.messages
        grown = self.messages = before.append(*messages)
        added = grown[len(before) :]
        self._unsaved += added
        try:
            self.save_pending()
        except BaseException:
            self._unsaved = tuple(one for one in self._unsaved if one not in added)
            if self.messages is grown:
                self.messages = before
            raise

    def keep(self, message: Message) -> tuple[Notice, ...]:
        """Adds a message that must not be lost, such as results of tools that have run. If
        `save` fails, returns a notice."""
        self.messages = self.messages.append(message)
        self._unsaved += self.messages[-1:]
        try:
            self.save_pending()
        except Exception as problem:
            return (reported("save_failed", problem),)
        return ()

    def answer(self, messages: Conversation, added: int) -> bool:
        """A turn was answered; its last messages are new. Returns whether they are to be saved."""
        self.messages = self.answered = messages
        self.notices = ()
        if self._save is None:
            return False
        self._unsaved += messages[-added:]
        return True

    def save_pending(self) -> None:
        """Passes messages to `save`, in order and without a gap: failed ones first."""
        if self._save is None:
            self._unsaved = ()
        while self._unsaved and self._save is not None:
            message, self._unsaved = self._unsaved[0], self._unsaved[1:]
            try:
                self._save(message)
            except BaseException:
                self._unsaved = (message, *self._unsaved)
                raise

    # ── Compactions of an earlier session ────────────────────────────────────────────────────────

    def note_compaction(self, before: Conversation, after: Conversation) -> None:
        """The history of a stored conversation was shortened."""
        self.compaction = SavedCompaction.of(self.compaction, before, after)

    def saved(self, process: str, current: Target, cost_usd: Decimal | None) -> SavedConversation:
        """For a later session; the states are added when it is stored."""
        return SavedConversation(
            process=process,
            current=(current.endpoint.id, current.model),
            cost_usd=None if cost_usd is None else str(cost_usd),
            states=(),
            boundary=self.memory.boundary,
            continuation=self.memory.continuation,
            compaction=self.compaction,
        )

    def restore(self, saved: SavedConversation) -> None:
        """Continues from the end of an earlier session."""
        self.memory = msgspec.structs.replace(
            self.memory, boundary=saved.boundary, continuation=saved.continuation
        )
        self.compaction, answered = saved.compaction, self.answered
        if answered:
            appended = self.messages[len(answered) :]
            self.answered = self._left_of(answered)
            self.messages = self.answered.append(*appended)

    def _left_of(self, history: Conversation) -> Conversation:
        """A history that the app has loaded, without what an earlier session dropped of it."""
        compaction = self.compaction
        dropped = 0 if compaction is None else compaction.dropped(history)
        if compaction is None or not dropped:
            self.compaction = None
            return history
        return Conversation((*compaction.summary, *history[dropped:]))


def _is_same(one: Conversation, other: Conversation) -> bool:
    return len(one) == len(other) and one.extends(other)
