"""Texts of providers without secrets that are known.

Redactor(["sk-ant-api03-9aF3xLq…"])(text)
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from .errors import AnaphoraError
from .redaction import is_placeholder

#: Replaces a secret.
MASK = "<secret>"
#: Shorter secrets are replaced as whole words only.
_SHORT = 8
#: What a provider writes instead of the middle of a key, or of its end.
_MASKED = re.compile(r"[*•#…█]+|\.{2,}|[xX]{4,}")
#: Shorter ones show too little of a secret: three characters and what stands for the others.
_TOKEN = re.compile(r"[^\s\"'`<>(){}\[\],;:=]{4,}")


class Redactor:
    """Replaces given secrets in texts, also if a provider masked or cut off a part of one. Takes
    time in proportion to the text."""

    __slots__ = ("_pattern", "_secrets")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(dict.fromkeys(each for each in secrets if not is_placeholder(each)))
        self._pattern: re.Pattern[str] | None = None

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets>"

    def __call__(self, text: str) -> str:
        if not self._secrets or not text:
            return text
        if self._pattern is None:
            self._pattern = _pattern(self._secrets)
        return _TOKEN.sub(self._without_part, self._pattern.sub(MASK, text))

    def clean(self, error: AnaphoraError) -> None:
        """Replace the secrets in all texts of an error. The partial reply stays as it is."""
        error.args = tuple(self(each) if isinstance(each, str) else each for each in error.args)
        for name, value in vars(error).items():
            if isinstance(value, str):
                setattr(error, name, self(value))
            elif name in ("__notes__", "details"):
                setattr(error, name, self.inside(value))

    def inside(self, value: Any) -> Any:
        """A JSON value with the secrets replaced in its texts."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self.inside(each) for each in value]
        if isinstance(value, dict):
            return {self(name): self.inside(each) for name, each in value.items()}
        return value

    def _without_part(self, token: re.Match[str]) -> str:
        """Replaces a token that is a part of a secret: sk-ant-***9aF, sk-ant-api03-…"""
        text = token[0]
        whole = text.rstrip(".!?")
        if len(whole) >= _SHORT and any(whole in each for each in self._secrets):
            return MASK
        runs = list(_MASKED.finditer(text))
        if not runs:
            return text
        begin, end = text[: runs[0].start()], text[runs[-1].end() :].rstrip(".!?")
        for each in self._secrets:
            if (len(begin) > 2 and each.startswith(begin)) or (len(end) > 2 and each.endswith(end)):
                return MASK
        return text


def _pattern(secrets: Iterable[str]) -> re.Pattern[str]:
    """Finds the secrets; the longest first, since one may contain another."""
    forms = dict.fromkeys(form for secret in secrets for form in _forms(secret))
    ordered = sorted(forms, key=len, reverse=True)
    return re.compile(
        "|".join(
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in ordered
        ),
        re.IGNORECASE,
    )


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, in JSON, in a URL, and in base64."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret)[1:-1].replace("/", "\\/")
    yield "".join(
        each if each.isalnum() or each in "-._~" else f"%{ord(each):02X}" for each in secret
    )
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
