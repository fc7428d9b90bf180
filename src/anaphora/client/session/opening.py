"""The sessions of a client, opened by the keywords of `AsyncClient.session`; and their cache
handles, which are released with the client."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from anaphora.client.arguments import (
    callback_of,
    extras_of,
    flag_of,
    history_of,
    prompt_from,
    seconds_of,
    state_of,
    tools_of,
)
from anaphora.client.budget import budget_of
from anaphora.client.cold_guard import ColdGuard, cold_guard_of
from anaphora.client.conversations import Conversations, id_of, store_of
from anaphora.client.observe import Watchers
from anaphora.client.options import SessionOptions, refuse_both
from anaphora.client.parameters import with_params
from anaphora.client.pool import ChosenTargets
from anaphora.client.routing import SessionRoute
from anaphora.values import Conversation, Extras, Message, Notice
from anaphora.values.fields import frozen

from . import Session
from .call_builder import CallBuilder, PromptSource
from .compaction import compact_at_of
from .handles import Handles
from .history import SessionHistory
from .history_file import HistoryFile
from .keeper import ConversationKeeper
from .turn_prompt import prompt_of
from .turns import SessionTurns

#: Seconds that closing waits for providers to delete handles.
_RELEASE_TIMEOUT = 5.0

#: The field of a prompt for each keyword of a session.
_PLACES_IN_PROMPT = {
    "system": "system_text or system_blocks",
    "messages": "a conversation segment (or turns)",
    "state": "a volatile tail segment (or state_turn)",
    "cache": "cache",
}
_PLACES_IN_HISTORY = {
    "messages": "the messages",
    "save": "every new message",
    "prompt": "the conversation (give system=, state= and cache= with it)",
}


class ClientSessions:
    """All sessions of one client."""

    def __init__(
        self,
        watchers: Watchers,
        on_wait: Callable[[float], None] | None,
        conversations: Conversations | None,
    ) -> None:
        self._watchers = watchers
        self._on_wait = on_wait
        self.cold: ColdGuard | None = None
        """The guard of sessions that have none of their own."""
        self._holders: set[Handles] = set()
        """All live cache handles, also of sessions that were dropped."""
        self._store = store_of(conversations)
        self._store_ends = conversations is None
        """Whether stored conversations, and so their handles, end with this client."""
        self._process = uuid.uuid4().hex

    def open(self, chosen: ChosenTargets, options: SessionOptions) -> Session:
        """A session with these targets. Checks the options, but not their names."""
        targets, hops = chosen
        cold = cold_guard_of(options, self.cold)
        store = options.pop("store", None)  # decided for each provider
        if store is not None:
            flag_of(store, "store")
        tools = tools_of(options.get("tools"))
        profiles = [target.profile for target in targets]
        name = id_of(options.get("id"))
        builder = CallBuilder(
            tools=tools,
            params=with_params(options.get("params"), options, tools.source.current),
            extras=frozen(extras_of(options.get("extras")), Extras | None, "extras"),
            store=store,
            diagnose=flag_of(options.get("diagnose", False), "diagnose"),
            compact_at=compact_at_of(options.get("compact_at"), profiles),
            cold=cold,
        )
        source, messages = _prompt_source(options)
        save: Callable[[Message], None] | None = callback_of(options.get("save"), "save")
        notices: tuple[Notice, ...] = ()
        if (path := options.get("history")) is not None:
            refuse_both(options, "history", _PLACES_IN_HISTORY)
            kept = HistoryFile(path)
            messages, save, notices = Conversation(kept.messages), kept.save, kept.notices
        turns = SessionTurns(
            SessionRoute(targets, hops),
            builder,
            SessionHistory(source, messages, save, notices),
            on_prefix_break=options.get("on_prefix_break", "warn"),
            timeout=seconds_of(options.get("timeout"), "timeout"),
            on_wait=self._on_wait,
            watchers=self._watchers,
            holders=self._holders if name is None or self._store_ends else set(),
        )
        turns.budget = budget_of(options.get("budget"))
        if name is not None:
            turns.keep_with(ConversationKeeper(self._store, name, self._process, saved_as=name))
        return Session(turns)

    async def close(self) -> None:
        """Releases what providers hold."""
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await asyncio.gather(*(handles.release() for handles in list(self._holders)))
        except TimeoutError:
            pass  # handles expire by themselves


def _prompt_source(options: SessionOptions) -> tuple[PromptSource, Conversation]:
    """The prompt source from the keywords of a session, and the initial history."""
    prompt = options.get("prompt")
    if prompt is None:
        system, messages = history_of(options.get("system"), options.get("messages", ()))
        ir = prompt_from(system, options.get("cache"))
        return PromptSource(ir, state_of(options.get("state")), from_keywords=True), messages
    refuse_both(options, "prompt", _PLACES_IN_PROMPT)
    return PromptSource(prompt_of(prompt)), Conversation()
