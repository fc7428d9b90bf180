"""Anaphora's client, with the time as the state of its session."""

from __future__ import annotations

from typing import Any

from cachebench.clients.ours import Ours


def contestant(provider: str, model: str, url: str) -> Any:
    return Ours(provider, model, url, clock_as_state=True)
