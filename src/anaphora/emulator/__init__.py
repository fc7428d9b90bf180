"""A local server that speaks every wire, keeps a prompt cache by the provider's rules, bills like
it, refuses like it, and misbehaves on request.

    from anaphora import emulator

    with emulator.running() as emu:
        client = anthropic.Anthropic(base_url=emu.url, api_key="any")

`core` is pure: it does no I/O, and time is an argument. `server` is Starlette and Granian, which
come with the extra `anaphora[emulator]`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.options import Options
    from .server.run import Emulator

__all__ = ["Emulator", "Options", "running"]

#: What is loaded only when it is asked for: the command line asks before it has the extra.
_LATE = {"Emulator": ".server.run", "Options": ".core.options"}


def running(
    options: Options | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> AbstractContextManager[Emulator]:
    """An emulator for as long as the block lasts, at a port that is free unless one is named."""
    from .server.run import running as run

    return run(options, host=host, port=port)


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name], __name__), name)
