"""Types are checked where a value is made: a wrong one is named there, and not lost later."""

from __future__ import annotations

from anaphora.errors import InvalidRequest


def expect(value: object, kind: type, path: str, hint: str = "") -> None:
    """Raises an error that names the field, unless the value is of that type."""
    if not isinstance(value, kind):
        given = repr(value) if isinstance(value, str) else type(value).__name__
        raise InvalidRequest(f"must be a {kind.__name__}{hint}, not {given}", path=path)
