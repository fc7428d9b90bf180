"""Masks providers' answers for apps: removes keys, account names and the operator's own hosts from
texts, and cache reads from stored responses of apps that share a cache. The app's own share of
these reads is not known any more."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from anaphora.daemon.calls.translation import member_object, with_members
from anaphora.redaction import MASK, looks_like_key
from anaphora.wire.reading import DECODE_ERRORS, Members, decode_members, encode_members

#: Maximum number of characters shown of one text.
LONGEST = 2_000
_HIDDEN = "…"
#: Maximum length of an account name.
_LONGEST_NAME = 512
_BETWEEN_WORDS = frozenset(" \t\r\n'\"`,;()<>")
_WORDS = re.compile(r"[^\s'\"`,;:()<>\[\]{}=&?#|…]+")
#: Each replaces its first group if it has one, otherwise the whole match. They run in linear time,
#: since the texts are untrusted.
_PATTERNS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        # Organisations, projects, workspaces and users by their ids.
        r"\b(?:org|proj|wrkspc|acct)[-_/][\w-]{6,}",
        r"\buser[-_/](?=[\w-]{0,128}\d)[\w-]{6,}",
        r"\b(?:projects|organizations|workspaces|accounts|subscriptions|tenants)/([\w.:-]+)",
        # The same after their names: `user_id: u-1`, `project number 123456`, `account=…`.
        r"\b(?:user|account|customer|subscription|tenant|organization|org|project)[-_ ]?"
        r"(?:id|number|key)\b[\"']?\s*+(?:[:=#]\s*+)?[\"']?([\w.@-]{0,128}\d[\w.@-]*)",
        r"\b(?:project|account|organization|consumer)[\"']?(?:\s*+[:=#]\s*+|\s++)[\"']?"
        r"((?:project_number:)?\d{4,}[\w-]*)",
        r"\b(?:bearer|basic)\s++(?=[\w.~+/-]{0,64}\d)([\w.~+/-]{12,}=*)",
        # Users, roles and their sessions at AWS, and account numbers, alone or in an ARN.
        r"\barn:[\w-]{1,20}:(?:iam|sts):[\w-]{0,20}:[^:\s]{0,20}:[a-z-]{1,20}/([\w+=,.@:/-]+)",
        r"(?<![\w.])\d{12}(?![\w.])",
        r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b",
        # Addresses in private networks.
        r"(?<![\w.])(?:10|127)(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])",
        r"(?<![\w.])(?:192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?::\d+)?(?![\w.])",
        r"(?<![\w:])\[?(?:::1|f[cd][0-9a-f]{2}:[0-9a-f:]+|fe80:[0-9a-f:]+)\]?(?::\d+)?(?![\w:])",
        r"\blocalhost(?::\d+)?\b",
        r"(?<![\w.-])[.-]*+(?:[\w-]+\.+)+(?:internal|local|lan|corp|intranet|localdomain|svc)"
        r"(?::\d+)?\b",
    )
)

_NULL = msgspec.Raw(b"null")
_DIAGNOSTICS = "prompt_cache_diagnostics"
_COUNTS = ("cached_tokens", "cache_write_tokens")
_DETAILS = ("input_tokens_details", "prompt_tokens_details")
#: Anthropic's counts of read and other input tokens.
_READ, _UNCACHED = "cache_read_input_tokens", "input_tokens"


def without_accounts(text: str, own_host: str = "") -> str:
    """A provider's text without keys, account names and the operator's own addresses. `own_host` is
    the provider's host if it is one of those."""
    if own_host:
        text = re.sub(rf"(?<![\w.-]){re.escape(own_host)}(?::\d+)?", _HIDDEN, text, flags=re.I)
    for pattern in _PATTERNS:
        text = pattern.sub(_replacement, text)
    return _WORDS.sub(lambda word: MASK if looks_like_key(word[0]) else word[0], text)


def _replacement(match: re.Match[str]) -> str:
    if not match.re.groups:
        return _HIDDEN
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return match[0][:start] + _HIDDEN + match[0][end:]


def shown_text(text: str, own_host: str = "") -> str:
    """The same for a text of any length, which is cut if it is long."""
    if len(text) <= LONGEST:
        return without_accounts(text, own_host)
    # Cut between words first: a cut name would not be recognized.
    head = text[: 2 * LONGEST]
    if len(head) < len(text):
        whole = len(head) - _LONGEST_NAME
        ends = (at for at in range(len(head), whole, -1) if head[at - 1] in _BETWEEN_WORDS)
        head = head[: next(ends, whole)]
    head = without_accounts(head, own_host)
    return head if len(head) <= LONGEST and len(text) <= 2 * LONGEST else f"{head[:LONGEST]}…"


def masked(value: Any, own_host: str = "") -> Any:
    """A JSON value with masked texts."""
    if isinstance(value, str):
        return shown_text(value, own_host)
    if isinstance(value, list):
        return [masked(each, own_host) for each in value]
    if isinstance(value, dict):
        return {shown_text(name): masked(each, own_host) for name, each in value.items()}
    return value


# ── Cache counts ─────────────────────────────────────────────────────────────────────────────────


def without_cache_counts(body: bytes) -> bytes:
    """The JSON of a response as if nothing had been read from a cache or written to it."""
    try:
        members = decode_members(body)
    except DECODE_ERRORS:
        return body
    changes = {}
    if members.get(_DIAGNOSTICS, _NULL) != _NULL:
        changes[_DIAGNOSTICS] = b"null"
    usage = member_object(members, "usage")
    for name in _DETAILS:
        if details := member_object(usage, name):
            counts = {count: msgspec.Raw(b"0") for count in _COUNTS if count in details}
            usage[name] = msgspec.Raw(encode_members({**details, **counts}))
            changes["usage"] = encode_members(usage)
    if _number(usage, _READ):
        uncached = _number(usage, _UNCACHED) + _number(usage, _READ)
        usage |= {_UNCACHED: msgspec.Raw(b"%d" % uncached), _READ: msgspec.Raw(b"0")}
        usage.pop("iterations", None)
        changes["usage"] = encode_members(usage)
    return with_members(body, members, changes)


def _number(members: Members, name: str) -> int:
    raw = bytes(members.get(name, b""))
    return int(raw) if raw.isdigit() else 0
