"""Errors that lead with a path, as Anthropic's do."""

from __future__ import annotations

from anaphora.errors import Upstream

from .case import rejected


def refused_at(path: str, reason: str) -> Upstream:
    """`messages.0.content.1: reason`; the reason alone where the error names no place."""
    message = f"{path}: {reason}" if path else reason
    return rejected(message, param=path or None, code="invalid_request_error")
