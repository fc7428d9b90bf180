"""The size of the history behind stored objects, which requests that refer to it are billed for.

A stored response stays as it is. A conversation grows by each call in it: by the call's own request
and its output at most. The bill of a call tells the whole size only where nothing else was added to
the conversation meanwhile.
"""

from __future__ import annotations

import msgspec

from anaphora.daemon.facts.handles import not_found, own_rows, stored_id
from anaphora.daemon.facts.request import RequestFacts
from anaphora.daemon.store import HandleRow, Store

from .bounds import HISTORY_KINDS


class GrowingConversation(msgspec.Struct, eq=False):
    """A conversation while a call runs in it."""

    row: HandleRow
    """As it was before."""
    growth: int
    """The most tokens that the call adds."""
    alone: bool = True
    """No other call runs in it."""


class StoredHistory:
    """The sizes of what apps have stored, for all calls of a daemon."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._growing: dict[tuple[str, str], list[GrowingConversation]] = {}

    async def tokens(
        self, app: str, facts: RequestFacts, provider: str | None = None
    ) -> int | None:
        """The most that the history behind a request's handles can have; None where the size of one
        is not known. Raises `NotFound` for a handle that is not the app's own, or is at another
        provider."""
        named = [(kind, stored_id(kind, text) or "") for _, kind, text in facts.handles]
        rows = await own_rows(self._store, app, named)
        total: int | None = 0
        for (param, kind, text), key in zip(facts.handles, named, strict=True):
            row = rows.get(key)
            if row is None or provider not in (None, row.provider):
                raise not_found(kind, text, param)
            if kind not in HISTORY_KINDS:
                continue
            total = None if total is None or row.tokens is None else total + row.tokens
            for one in self._growing.get((app, row.id), ()):
                total = None if total is None else total + one.growth
        return total

    async def begin(self, app: str, facts: RequestFacts, output: int) -> list[GrowingConversation]:
        """The conversations of a call that is about to run, and may answer so many tokens."""
        grown = []
        for handle in facts.handles:
            if handle.kind != "conversation":
                continue
            row = await self._store.handle("conversation", handle.id, app)
            if row is not None:
                grown.append(GrowingConversation(row, facts.size + output))
        for one in grown:
            running = self._growing.setdefault((app, one.row.id), [])
            running.append(one)
            if len(running) > 1:
                for each in running:
                    each.alone = False
        return grown

    async def end(
        self, grown: list[GrowingConversation], *, sent: bool, size: int | None = None
    ) -> None:
        """The call has ended. `sent`: it may have reached the provider; `size` is that of the
        history behind the next call, by the bill."""
        for one in grown:
            row = one.row
            try:
                if sent:
                    await self._store.grow_handle(row, one.growth, size if one.alone else None)
            finally:
                running = self._growing[row.app, row.id]
                running.remove(one)
                if not running:
                    del self._growing[row.app, row.id]
