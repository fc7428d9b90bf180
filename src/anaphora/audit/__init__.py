"""The audit log: one row per call, each with a hash that covers the row before.

    with AuditLog("audit", app="shop") as log, Client.from_env(audit=log) as client:
        with labelled("checkout"):
            client.complete("…")

`anaphora audit verify audit` finds any later change. A row holds names, figures and digests, never
text of a prompt or a response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters import AuditedAdapter
    from .call_rows import labelled
    from .envelope import AuditEnvelope
    from .log import AuditLog, prune
    from .reading import CallFilter, calls, rows, verify

__all__ = [
    "AuditEnvelope",
    "AuditLog",
    "AuditedAdapter",
    "CallFilter",
    "calls",
    "labelled",
    "prune",
    "rows",
    "verify",
]

#: Loaded on first use.
_LAZY = {
    "AuditEnvelope": ".envelope",
    "AuditLog": ".log",
    "AuditedAdapter": ".adapters",
    "CallFilter": ".reading",
    "calls": ".reading",
    "labelled": ".call_rows",
    "prune": ".log",
    "rows": ".reading",
    "verify": ".reading",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
