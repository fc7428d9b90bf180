"""What a provider keeps of a reply, and later requests may refer to by its id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from anaphora.daemon.store import HandleKind
from anaphora.daemon.values import AppReply
from anaphora.values import Opaque, Reply, Thinking, Usage

Kept: TypeAlias = tuple[HandleKind, str, int | None]
"""Kind, id, and the tokens that a request is billed for when it refers to it."""


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
    return kept_of_response(reply.reply, reply.usage, stored=stored)


def kept_of_response(reply: Reply, usage: Usage, *, stored: bool = True) -> Iterator[Kept]:
    """The objects that OpenAI keeps of a response."""
    if stored:
        yield "response", reply.id, usage.total
        for id in _item_ids(reply):
            yield "response", id, usage.output
    for part in reply.message.parts:
        if isinstance(part, Opaque) and part.kind == "code_interpreter_call":
            container = _decode_item(part.json).container_id
            if container:
                yield "container", container, None


def _item_ids(reply: Reply) -> Iterator[str]:
    """Of items that can be sent back as an id alone: reasoning, and images."""
    for part in reply.message.parts:
        data = ""
        if isinstance(part, Thinking) and part.extras is not None:
            data = part.extras.get(part.provider or "", "")
        elif isinstance(part, Opaque) and part.kind == "image_generation_call":
            data = part.json
        if data and (id := _decode_item(data).id):
            yield id


def _of_messages(request: dict[str, Any], reply: AppReply) -> Iterator[Kept]:
    """Requests with these fields name the message before them."""
    if reply.reply.id and ("diagnostics" in request or "thread" in request):
        yield "response", reply.reply.id, reply.usage.total
    extras = (reply.reply.extras or {}).get("anthropic")
    container = None if extras is None else _decode_extras(extras).container
    if container is not None and container.id:
        yield "container", container.id, None


_KEPT = {"openai_responses": _of_responses, "anthropic": _of_messages}
