"""What a provider keeps of a reply, and later requests may refer to by its id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from anaphora.daemon.calls.call import AppReply
from anaphora.daemon.money.stored_history import continued_tokens
from anaphora.daemon.store import HandleKind, HandleRow, Store
from anaphora.errors import AnaphoraError
from anaphora.values import Opaque, Part, Reply, Usage
from anaphora.wire.openai_responses.types import ITEM, WIRE

Kept: TypeAlias = tuple[HandleKind, str, int | None]
"""Kind, id, and the tokens that a request is billed for when it refers to it."""


#: OpenAI keeps responses and their items for 30 days. How long containers are kept is not
#: documented alike by all, so they stay the app's.
_FORGOTTEN: tuple[HandleKind, ...] = ("response", "item")
_SECONDS = 30 * 86_400.0
#: Seconds between two removals of older ones.
_REMOVAL_SECONDS = 60.0
#: Of one response; the ids of further ones are not known later.
_MOST_ITEMS = 256


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


class _Item(msgspec.Struct):
    id: str = ""
    container_id: str | None = None


class _Extras(msgspec.Struct):
    container: _Item | None = None


_decode_item = msgspec.json.Decoder(_Item).decode
_decode_extras = msgspec.json.Decoder(_Extras).decode


def kept_objects(wire: str, request: dict[str, Any], reply: AppReply) -> Iterator[Kept]:
    """The objects that a provider keeps of the reply to a request."""
    reader = _KEPT.get(wire)
    return iter(()) if reader is None else reader(request, reply)


def _of_responses(request: dict[str, Any], reply: AppReply) -> Iterator[Kept]:
    stored = request.get("store") is not False and bool(reply.reply.id)
    return kept_of_response(reply.reply, reply.most_usage or reply.usage, stored=stored)


def kept_of_response(reply: Reply, usage: Usage, *, stored: bool = True) -> Iterator[Kept]:
    """The objects that OpenAI keeps of a response."""
    if stored:
        total = continued_tokens(reply, usage.total)
        yield "response", reply.id, total
        for id, is_output in islice(_items(reply), _MOST_ITEMS):
            yield "item", id, continued_tokens(reply, usage.output) if is_output else total
    for part in reply.message.parts:
        if isinstance(part, Opaque) and part.kind == "code_interpreter_call":
            container = _decode_item(part.json).container_id
            if container:
                yield "container", container, None


def _items(reply: Reply) -> Iterator[tuple[str, bool]]:
    """The ids of a response's items, and whether an item is all output: a server tool also has
    what it read."""
    for part in reply.message.parts:
        if id := _decode_item(_item_fields(part)).id:
            yield id, not isinstance(part, Opaque) or part.kind == "image_generation_call"


def _item_fields(part: Part) -> str:
    """JSON of the fields of an item; of a message, its first part has them."""
    if isinstance(part, Opaque):
        return part.json
    extras = part.extras or {}
    return extras.get(ITEM) or extras.get(WIRE) or "{}"


def _of_messages(request: dict[str, Any], reply: AppReply) -> Iterator[Kept]:
    """Requests with these fields name the message before them."""
    if reply.reply.id and ("diagnostics" in request or "thread" in request):
        yield "response", reply.reply.id, (reply.most_usage or reply.usage).total
    extras = (reply.reply.extras or {}).get("anthropic")
    container = None if extras is None else _decode_extras(extras).container
    if container is not None and container.id:
        yield "container", container.id, None


_KEPT = {"openai_responses": _of_responses, "anthropic": _of_messages}
