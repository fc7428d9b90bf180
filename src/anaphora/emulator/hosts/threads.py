"""Anthropic's message threads: the provider keeps a conversation, a request sends the new messages.

Who may repeat what, and what happens to the markers of earlier requests, is not documented: fields
that equal the thread's are accepted, and markers hold for the request that sends them alone.
"""

from __future__ import annotations

import msgspec

from anaphora.emulator.exchange import NULL, decode_items, decode_object, nested
from anaphora.errors import NotFound, RequestRejected, Upstream
from anaphora.values import Reply

from .host import CompleteBody, RoutedRequest
from .stored import StoredObjects

#: Fields that a thread takes from its first request.
_HEAD = ("system", "tools")
#: Seconds after which a reply cannot be continued (PROVIDERS.md, 2026 features).
_LIFETIME = 300.0
#: Limits over all workspaces; the oldest goes first.
_MOST, _MOST_BYTES = 10_000, 64 * 1024 * 1024


class _Turn(msgspec.Struct, kw_only=True):
    """A reply that a request may continue once."""

    head: dict[str, msgspec.Raw]
    messages: tuple[bytes, ...]
    """Up to the reply."""
    at: float
    continued: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, (*self.messages, *map(bytes, self.head.values()))))


class MessageThreads:
    """The threads of one host."""

    def __init__(self) -> None:
        self._turns = StoredObjects[_Turn]("", lambda turn: turn.size, _MOST, _MOST_BYTES)

    def complete(self, request: RoutedRequest) -> CompleteBody:
        """The request with the whole thread; its items are the messages. Without a thread, the
        request itself, and no items."""
        kind, fields = nested(request.value("thread"), "type"), request.fields
        if kind is None:
            return CompleteBody(request.body)
        new = decode_items(fields.get("messages", NULL))
        if kind != "continue":
            return CompleteBody(request.body, new)
        turn = self._turn(request)
        changed = [
            name for name in _HEAD if fields.get(name, turn.head.get(name)) != turn.head.get(name)
        ]
        if changed:
            reason = f"{' and '.join(changed)}: differs from the value stored with the thread"
            raise _error(reason, "thread_fingerprint_mismatch")
        messages = (*turn.messages, *new)
        whole = fields | turn.head | {"messages": msgspec.Raw(b"[" + b",".join(messages) + b"]")}
        return CompleteBody(msgspec.json.encode(whole), messages)

    def keep(self, request: RoutedRequest, messages: tuple[bytes, ...], reply: Reply) -> None:
        """Stores the reply to a request with these messages; none: without a thread."""
        if not messages:
            return
        head = {name: request.fields[name] for name in _HEAD if name in request.fields}
        if nested(request.value("thread"), "type") == "continue":
            before = self._turn(request)
            before.continued, head = True, before.head
        written = decode_object(request.route.codec.write_reply(reply))
        answer = b'{"role":"assistant","content":%b}' % written["content"]
        messages = (*map(bytes, map(_unmarked, messages)), answer)
        turn = _Turn(head=head, messages=messages, at=request.now)
        self._turns.add(request.workspace, reply.id, turn)

    def _turn(self, request: RoutedRequest) -> _Turn:
        previous = str(nested(request.value("thread"), "previous_message_id"))
        turn = self._turns.find(request.workspace, previous)
        if turn is None or request.now > turn.at + _LIFETIME:
            reason = f"no usable thread was found for previous_message_id {previous}"
            raise _error(reason, "thread_not_found")
        if turn.continued:
            raise _error(f"{previous} has already been continued", "thread_already_continued")
        return turn


def _error(reason: str, code: str) -> Upstream:
    """The codes and their statuses: anthropic 2.8.0, types/thread_*_error_details.py."""
    error = (
        NotFound(reason, status=404)
        if code == "thread_not_found"
        else RequestRejected(reason, status=400)
    )
    error.details = {"details": {"error_code": code}}
    return error


def _unmarked(block: bytes | msgspec.Raw) -> msgspec.Raw:
    """A message or a block without markers; also those inside."""
    members = decode_object(block)
    members.pop("cache_control", None)
    if bytes(members.get("content", NULL))[:1] == b"[":
        inner = map(_unmarked, decode_items(members["content"]))
        members["content"] = msgspec.Raw(b"[" + b",".join(map(bytes, inner)) + b"]")
    return msgspec.Raw(msgspec.json.encode(members))
