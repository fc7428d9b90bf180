"""Recorded exchanges: written atomically and without secrets, verified before they are served.

    client = AsyncClient.from_env(transport=Recorder("recordings"))

`Recorder` is for the client, `proxy.recording` for other programs; both use a `Player`.
`RecordingAdapter` and `ReplayAdapter` are for adapters (`client.adapter`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter import RecordingAdapter, ReplayAdapter
    from .player import Player
    from .signing import SigningKey
    from .store import FixtureStore
    from .transport import Recorder

__all__ = ["FixtureStore", "Player", "Recorder", "RecordingAdapter", "ReplayAdapter", "SigningKey"]

#: Loaded on first access: verifying a folder needs no HTTP.
_LAZY = {
    "FixtureStore": "store",
    "Player": "player",
    "Recorder": "transport",
    "RecordingAdapter": "adapter",
    "ReplayAdapter": "adapter",
    "SigningKey": "signing",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anaphora.replay' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"anaphora.replay.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
