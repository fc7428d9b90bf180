"""What clients send that tells conversations apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

#: Headers and fields of the body that name a conversation, in this order: Claude Code, Codex (two
#: spellings), OpenRouter, xAI; Responses, OpenRouter, OpenAI and the hosts that follow it.
_CONVERSATION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-grok-conv-id",
)
_CONVERSATION_FIELDS = ("conversation", "session_id", "prompt_cache_key")
_USER_FIELDS = ("user", "safety_identifier")
_HEADERS = frozenset(_CONVERSATION_HEADERS)
_FIELDS = frozenset((*_CONVERSATION_FIELDS, *_USER_FIELDS, "metadata", "previous_response_id"))


class CallHints(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says about the conversation of a call."""

    conversation: str = ""
    """An id of the conversation, the session or the cache key. Subagents and side calls may have
    the same: it separates conversations, and joins none."""
    user: str = ""
    """An id of the end user, which separates conversations too."""
    previous_reply: str = ""
    """The reply that the call continues by its id (`previous_response_id`)."""

    def agrees(self, other: CallHints) -> bool:
        """Whether nothing that both clients send differs."""
        mine, theirs = self.conversation, other.conversation
        if mine and theirs and mine != theirs:
            return False
        mine, theirs = self.user, other.user
        return not mine or not theirs or mine == theirs


_NO_HINTS = CallHints()


def hints_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> CallHints:
    """The hints in a request. Header names are in lower case; the fields of the body are values or
    raw JSON."""
    if _HEADERS.isdisjoint(headers) and _FIELDS.isdisjoint(body):
        return _NO_HINTS
    named = [headers[name] for name in _CONVERSATION_HEADERS if name in headers]
    named += [_text(body[name]) for name in _CONVERSATION_FIELDS if name in body]
    metadata = _value(body.get("metadata"))
    users = [_text(metadata.get("user_id"))] if isinstance(metadata, dict) else []
    users += [_text(body[name]) for name in _USER_FIELDS if name in body]
    return CallHints(
        conversation=next(filter(None, named), ""),
        user=next(filter(None, users), ""),
        previous_reply=_text(body.get("previous_response_id")),
    )


def _value(value: Any) -> Any:
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    """A text, or the id of an object (`conversation`)."""
    value = _value(value)
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) else ""
