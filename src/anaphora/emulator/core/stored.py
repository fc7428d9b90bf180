"""Answers that OpenAI keeps: continued by `previous_response_id`, fetched, deleted."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import NotFound, RequestRejected
from anaphora.values import Reply
from anaphora.wire import Wire

#: What is kept over all workspaces; the oldest goes first.
_MOST, _BYTES = 10_000, 64 * 1024 * 1024
#: What an answer takes besides its input and what it repeats of the request.
_STORED = 2_000


class Stored(msgspec.Struct, frozen=True):
    """One answer with everything that led to it. Most are never asked for: they are written when
    they are."""

    items: tuple[bytes, ...]
    """The input of the whole chain,"""
    reply: Reply
    """and what was answered."""
    codec: Wire

    @property
    def response(self) -> bytes:
        return self.codec.write_reply(self.reply)

    @property
    def output(self) -> tuple[bytes, ...]:
        return tuple(map(bytes, msgspec.json.decode(self.response, type=_Output).output))

    @property
    def size(self) -> int:
        """About as many bytes as it holds."""
        extras = self.reply.extras or {}
        return _STORED + sum(map(len, self.items)) + sum(map(len, extras.values()))


class _Output(msgspec.Struct, frozen=True):
    output: list[msgspec.Raw]


class Responses:
    """The stored answers of every workspace."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Stored] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, workspace: str, items: tuple[bytes, ...], reply: Reply, codec: Wire) -> None:
        stored = Stored(items, reply, codec)
        self._kept[workspace, reply.id] = stored
        self._size += stored.size
        while len(self._kept) > _MOST or self._size > _BYTES:
            _, gone = self._kept.popitem(last=False)
            self._size -= gone.size

    def get(self, workspace: str, name: str) -> Stored:
        found = self._kept.get((workspace, name))
        if found is None:
            raise NotFound(f"no response {name}", status=404, code="not_found_error")
        return found

    def delete(self, workspace: str, name: str) -> bytes:
        self._size -= self.get(workspace, name).size
        del self._kept[workspace, name]
        return dumps({"id": name, "object": "response", "deleted": True})

    def chained(self, workspace: str, name: str) -> tuple[bytes, ...]:
        """What a request that goes on from an answer has before its own input."""
        found = self._kept.get((workspace, name))
        if found is None:
            raise NotFound(
                f"no response {name} to go on from",
                status=400,
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return (*found.items, *found.output)


def input_items(raw: bytes | None) -> tuple[bytes, ...]:
    """The items of a request's input; a text is a user's message."""
    if raw is None or raw == b"null":
        return ()
    if raw[:1] == b'"':
        return (b'{"type":"message","role":"user","content":' + raw + b"}",)
    try:
        return tuple(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))
    except msgspec.DecodeError as problem:
        raise RequestRejected(str(problem), status=400, param="input") from None


def with_input(body: dict[str, msgspec.Raw], items: tuple[bytes, ...]) -> bytes:
    """The request with everything that it goes on from in its input."""
    whole = {name: raw for name, raw in body.items() if name != "previous_response_id"}
    whole["input"] = msgspec.Raw(b"[" + b",".join(items) + b"]")
    return msgspec.json.encode(whole)


def listed(stored: Stored) -> bytes:
    """A stored answer's input, as `input_items` gives it: the latest first."""
    items = [msgspec.json.decode(item) for item in stored.items]
    data = [{"id": f"item_{at}", **item} for at, item in enumerate(items)][::-1]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return dumps({"object": "list", "data": data, **ends, "has_more": False})
