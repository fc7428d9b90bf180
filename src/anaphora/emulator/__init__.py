"""A local server with every wire. It caches prompts by each provider's rules, bills and rejects
requests like the provider, and injects faults.

    from anaphora import emulator

    with emulator.running() as emu:
        client = anthropic.Anthropic(base_url=emu.url, api_key="any")

All modules but `server` and `page` are pure: they do no I/O, and time is an argument. A server
needs Granian, which comes with the extra `anaphora[emulator]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .faults import Faults
    from .generator import EmulatorOptions, Latency
    from .replies.script import Script
    from .server import Emulator, running

__all__ = ["Emulator", "EmulatorOptions", "Faults", "Latency", "Script", "running"]

#: Loaded on first use.
_MODULES = {
    "Emulator": ".server",
    "EmulatorOptions": ".generator",
    "Faults": ".faults",
    "Latency": ".generator",
    "Script": ".replies.script",
    "running": ".server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name], __name__), name)
