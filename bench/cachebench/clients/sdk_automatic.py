"""The anthropic SDK with automatic caching: `cache_control` at the top of each request."""

from __future__ import annotations

from typing import Any

from cachebench.clients.sdks import Anthropic


def contestant(provider: str, model: str, url: str) -> Any:
    assert provider == "anthropic"
    return Anthropic(model, url, cache_control={"type": "ephemeral"})
