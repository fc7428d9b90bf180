"""Texts of providers as apps may see them: without keys, and without names of accounts and hosts of
the operator's own."""

from __future__ import annotations

import re
from typing import Any

from anaphora.redaction import looks_like_key
from anaphora.redactor import MASK

#: Characters of one text that are shown.
LONGEST = 2_000
_HIDDEN = "…"
#: No name of an account is longer.
_LONGEST_NAME = 512
_BETWEEN_WORDS = frozenset(" \t\r\n'\"`,;()<>")
_WORDS = re.compile(r"[^\s'\"`,;:()<>\[\]{}=&?#|…]+")
#: Each replaces its first group where it has one, and all that it matches otherwise. The time that
#: they take grows with the length of a text, not with its square: texts are a provider's or an
#: app's.
_PATTERNS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        # Organisations, projects, workspaces and users by their ids.
        r"\b(?:org|proj|wrkspc|acct)[-_/][\w-]{6,}",
        r"\buser[-_/](?=[\w-]{0,128}\d)[\w-]{6,}",
        r"\b(?:projects|organizations|workspaces|accounts|subscriptions|tenants)/([\w.:-]+)",
        # The same behind their names: `user_id: u-1`, `project number 123456`, `account=…`.
        r"\b(?:user|account|customer|subscription|tenant|organization|org|project)[-_ ]?"
        r"(?:id|number|key)\b[\"']?\s*+(?:[:=#]\s*+)?[\"']?([\w.@-]{0,128}\d[\w.@-]*)",
        r"\b(?:project|account|organization|consumer)[\"']?(?:\s*+[:=#]\s*+|\s++)[\"']?"
        r"((?:project_number:)?\d{4,}[\w-]*)",
        r"\b(?:bearer|basic)\s++(?=[\w.~+/-]{0,64}\d)([\w.~+/-]{12,}=*)",
        # Account numbers of AWS, alone or in an ARN.
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


def without_accounts(text: str, own_host: str = "") -> str:
    """A text of a provider without keys, names of accounts and addresses of the operator's own.
    `own_host` is the provider's, where it is one of those."""
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
    """The same of a text of any length, cut off where it is long."""
    if len(text) <= LONGEST:
        return without_accounts(text, own_host)
    # Cut between words first: a name that is cut would not be known.
    head = text[: 2 * LONGEST]
    if len(head) < len(text):
        whole = len(head) - _LONGEST_NAME
        ends = (at for at in range(len(head), whole, -1) if head[at - 1] in _BETWEEN_WORDS)
        head = head[: next(ends, whole)]
    head = without_accounts(head, own_host)
    return head if len(head) <= LONGEST and len(text) <= 2 * LONGEST else f"{head[:LONGEST]}…"


def masked(value: Any, own_host: str = "") -> Any:
    """A JSON value with its texts as apps may see them."""
    if isinstance(value, str):
        return shown_text(value, own_host)
    if isinstance(value, list):
        return [masked(each, own_host) for each in value]
    if isinstance(value, dict):
        return {shown_text(name): masked(each, own_host) for name, each in value.items()}
    return value
