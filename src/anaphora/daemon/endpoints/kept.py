"""What a provider keeps of a reply, and later requests may refer to by its id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from anaphora.daemon.faces.face import Kept
from anaphora.daemon.store import HandleKind, HandleRow, Store
from anaphora.errors import AnaphoraError

#: OpenAI keeps responses and their items for 30 days. How long containers are kept is not
#: documented alike by all, so they stay the app's.
_FORGOTTEN: tuple[HandleKind, ...] = ("response", "item")
_SECONDS = 30 * 86_400.0
#: Seconds between two removals of older ones.
_REMOVAL_SECONDS = 60.0


class KeptObjects:
    """Notes whose the objects are that a provider keeps of a call. Responses are forgotten when the
    provider has deleted them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._removed = 0.0

    async def add(self, row: HandleRow, kept: Iterable[Kept]) -> None:
        """Objects of the app and the provider of `row`."""
        rows = [
            msgspec.structs.replace(
                row, kind=kind, id=id, tokens=tokens, bill=row.bill if id == row.id else ""
            )
            for kind, id, tokens in kept
        ]
        await asyncio.gather(*map(self._store.add_handle, rows))  # in one transaction
        if not rows or row.created - self._removed <= _REMOVAL_SECONDS:
            return
        self._removed = row.created
        with contextlib.suppress(AnaphoraError):
            for kind in _FORGOTTEN:
                await self._store.remove_old_handles(kind, row.created - _SECONDS)
