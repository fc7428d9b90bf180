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
    from .envelope import AuditBlock, AuditEnvelope, AuditUsage, StoredRow
    from .log import AuditLog, prune
    from .reading import CallFilter, VerifiedLog, calls, rows, verify
    from .writer import AuditError

__all__ = [
    "AuditBlock",
    "AuditEnvelope",
    "AuditError",
    "AuditLog",
    "AuditUsage",
    "AuditedAdapter",
    "CallFilter",
    "StoredRow",
    "VerifiedLog",
    "calls",
    "labelled",
    "prune",
    "rows",
    "verify",
]

#: Loaded on first use.
_LAZY = {
    "AuditBlock": ".envelope",
    "AuditEnvelope": ".envelope",
    "AuditError": ".writer",
    "AuditLog": ".log",
    "AuditUsage": ".envelope",
    "AuditedAdapter": ".adapters",
    "CallFilter": ".reading",
    "StoredRow": ".envelope",
    "VerifiedLog": ".reading",
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
