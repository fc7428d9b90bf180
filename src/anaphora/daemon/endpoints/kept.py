"""Objects that a provider stores for apps and that later requests can name by id: their owners and
tokens, and the bills of background responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from anaphora.daemon.faces.face import Kept, Route
from anaphora.daemon.faces.openai import kept_of_response
from anaphora.daemon.money.late_bills import LateBill, LateBills, is_queued, read_response
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import HandleKind, HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.errors import AnaphoraError, NotFound
from anaphora.wire.facts.content import RequestContent, scan_content
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.replies import valid_count
from anaphora.wire.tables import request_table

from .body import JsonBody
from .forwarding import Forwarder

#: OpenAI keeps responses and their items for 30 days. Documents on the lifetime of containers
#: differ, so their rows are kept.
_FORGOTTEN: tuple[HandleKind, ...] = ("response", "item")
_SECONDS = 30 * 86_400.0
#: Seconds between removals of older rows.
_REMOVAL_SECONDS = 60.0


class KeptObjects:
    """Records the owners of objects that a provider stores. Responses are forgotten when the
    provider has deleted them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._removed = 0.0

    async def add(self, row: HandleRow, kept: Iterable[Kept]) -> None:
        """Adds objects of the app and provider of `row`."""
        rows = [
            replace(row, kind=kind, id=id, tokens=tokens, bill=row.bill if id == row.id else "")
            for kind, id, tokens in kept
        ]
        await asyncio.gather(*map(self._store.add_handle, rows))  # in one transaction
        if not rows or row.created - self._removed <= _REMOVAL_SECONDS:
            return
        self._removed = row.created
        with contextlib.suppress(AnaphoraError):
            for kind in _FORGOTTEN:
                await self._store.remove_old_handles(kind, row.created - _SECONDS)

    async def register(self, row: HandleRow, answer: bytes, body: JsonBody | None) -> None:
        """Adds the object named in a provider's answer. `row` lacks id and tokens, `body` is the
        request."""
        fields = fields_of(answer)
        id = str(fields.get("id") or fields.get("name") or "").rpartition("/")[2]
        if not id:
            raise NotFound("the provider's answer names no object", status=502)
        tokens: int | None = None
        if row.kind == "conversation" and body is not None:
            tokens = most_tokens(body)
        elif row.kind == "cached_content":
            tokens = cached_tokens(fields)
        await self._store.add_handle(replace(row, id=id, tokens=tokens))

    async def register_results(self, batch: HandleRow, answer: bytes, now: float) -> None:
        """Adds the files that a batch wrote, as files of the batch's app."""
        fields = fields_of(answer)
        for name in ("output_file_id", "error_file_id"):
            id = fields.get(name)
            if isinstance(id, str) and await self._store.handle("file", id, batch.app) is None:
                row = HandleRow(
                    kind="file", id=id, app=batch.app, provider=batch.provider, created=now
                )
                await self._store.add_handle(row)


class BackgroundResponses:
    """Responses whose bill, size and items are known only when they are fetched or cancelled."""

    def __init__(
        self, kept: KeptObjects, forwarder: Forwarder, ledger: Ledger, bills: LateBills
    ) -> None:
        self._kept = kept
        self._forwarder = forwarder
        self._ledger = ledger
        self._bills = bills

    def stored_bill(self, app: str, response_id: str) -> str:
        """The stored form of a response's bill."""
        return self._bills.record(app, response_id)

    async def has_begun(self, row: HandleRow, route: Route) -> bool | None:
        """Whether a response that is about to be cancelled has begun; None if unknown or not to be
        cancelled. One that has not begun costs nothing."""
        if route.rest != "cancel" or row.tokens is not None:
            return None
        with contextlib.suppress(AnaphoraError):
            found = await self._forwarder.send(row.provider, "GET", f"/v1/responses/{row.id}")
            return not is_queued(found.body)
        return None

    async def fetched(
        self, row: HandleRow, route: Route, answer: bytes, began: bool | None
    ) -> None:
        """Bills a response that has ended. The app gets it even if the store fails."""
        if row.tokens is not None or route.operation == "delete" or route.rest == "input_items":
            return
        fetched = read_response(answer)
        if fetched is None or fetched.reply.id != row.id:
            return
        reply = fetched.reply
        self._bills.fetched(row.app, replace(fetched, began=began), lambda: self._read_bill(row))
        if reply.usage.total is None:
            return
        with contextlib.suppress(AnaphoraError, *DECODE_ERRORS):
            await self._kept.add(replace(row, bill=""), kept_of_response(reply, reply.usage))

    def _read_bill(self, row: HandleRow) -> LateBill | None:
        if not row.bill:
            return None
        return LateBill.read(row.id, row.bill, self._ledger, self._forwarder.target)


def most_tokens(body: JsonBody) -> int | None:
    """The maximum tokens of a conversation's items: a token has at least one byte. None if they
    contain more than text."""
    found = RequestContent()
    items = body.members.get("items", msgspec.Raw(b"null"))
    scan_content(request_table("openai_responses"), "input", items, found)
    media = found.media
    if media.images or media.documents or media.audio or found.handles:
        return None
    return len(body.data)


def cached_tokens(fields: dict[str, Any]) -> int | None:
    usage = fields.get("usageMetadata")
    tokens = usage.get("totalTokenCount") if isinstance(usage, dict) else None
    return valid_count(tokens) if type(tokens) is int else None


def fields_of(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}
