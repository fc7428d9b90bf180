"""Patterns that find a secret in bytes, however it is encoded.

Each character may be written as itself, as a JSON escape (also of JSON within JSON) or
percent-encoded. In base64 a secret has three forms, since three bytes become four characters; the
characters that hold bits of its neighbours are left out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import msgspec

#: Shorter secrets are found as whole words only, and not in base64.
_SHORT = 8
_WORD = rb"A-Za-z0-9_"
#: The backslashes of an escape: twice as many and one more at each level of JSON within JSON. The
#: number is limited: a search must not take longer than in proportion to the text.
_ESCAPE = rb"\\\\{0,14}"


class SecretForm(msgspec.Struct, frozen=True):
    pattern: re.Pattern[bytes]
    mask: bytes = b""
    """What replaces it; empty: the usual mask. Base64 stays base64 of the same length."""

    def __repr__(self) -> str:
        return "<SecretForm>"


def secret_patterns(secret: str) -> Iterator[SecretForm]:
    pattern = _sequence(secret)
    if len(secret) < _SHORT:
        yield SecretForm(re.compile(b"(?<![%b])%b(?![%b])" % (_WORD, pattern, _WORD)))
        return
    yield SecretForm(re.compile(pattern))
    for text in dict.fromkeys(_base64_forms(secret.encode("utf-8", "surrogatepass"))):
        yield SecretForm(re.compile(_base64_pattern(text)), b"A" * len(text))


def _base64_forms(data: bytes) -> Iterator[str]:
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode()
        first = -(-before * 8 // 6)
        last = (before + len(data)) * 8 // 6
        yield encoded[first:last]
        yield encoded[first:last].replace("+", "-").replace("/", "_")


def _base64_pattern(text: str) -> bytes:
    """Letters and digits are never escaped; a search for them as they are is much faster."""
    return b"".join(each.encode() if each.isalnum() else _character(each) for each in text)


def _sequence(text: str) -> bytes:
    return b"".join(map(_character, text))


def _character(character: str) -> bytes:
    data = character.encode("utf-8", "surrogatepass")
    units = character.encode("utf-16-be", "surrogatepass")
    json = b"".join(
        _ESCAPE + b"u" + _hex(units[at : at + 2].hex()) for at in range(0, len(units), 2)
    )
    percent = b"".join(b"%(?:25){0,3}" + _hex(f"{byte:02x}") for byte in data)
    forms = [re.escape(data), json, percent]
    if character in '"\\/':
        forms.append(_ESCAPE + re.escape(data))
    return b"(?:" + b"|".join(forms) + b")"


def _hex(digits: str) -> bytes:
    """Hex digits in either case."""
    return b"".join(
        f"[{each}{each.upper()}]".encode() if each.isalpha() else each.encode() for each in digits
    )
