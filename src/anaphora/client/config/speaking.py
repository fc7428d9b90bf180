"""Which wire a provider speaks, and in whose dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from anaphora import wire
from anaphora.catalog import Dialect, dialects
from anaphora.errors import InvalidRequest
from anaphora.marked import nearest

from .origin import Origin
from .values import Provider


def row_of(id: str, provider: Provider, origin: Origin) -> Dialect:
    """The catalog's row for what a provider speaks; for a wire alone that of its home."""

    def wrong(reason: str, field: str) -> NoReturn:
        raise origin.invalid(reason, "providers", id, field) from None

    said, name = provider.wire, provider.dialect
    if name is None:
        if said is None:
            raise origin.invalid("name a `wire` or a `dialect`", "providers", id)
        if said in wire.WIRES:
            return dialects().find(wire.PROVIDERS[said], said)
        if not _is_known(said):
            wrong(_unknown("wire", said, wire.names()), "wire")
        return _found(said, "wire", wrong)
    if not _is_known(name):
        wrong(_unknown("dialect", name, _speakers()), "dialect")
    if said is None:
        return _found(name, "dialect", wrong)
    if said not in wire.WIRES:
        if _is_known(said):
            wrong(f"{said} is a dialect already; leave `dialect` out, or name a wire", "wire")
        wrong(_unknown("wire", said, wire.WIRES), "wire")
    if "/" in name:
        row = _found(name, "dialect", wrong)
        if row.wire != said:
            wrong(f"{name} is a dialect of {row.wire}, not of {said}", "wire")
        return row
    return _found(f"{name}/{said}", "wire", wrong)


def is_home(row: Dialect) -> bool:
    """Whether the wire's own words are all that is spoken there."""
    return row.key == (wire.PROVIDERS.get(row.wire), row.wire, "")


def _is_known(name: str) -> bool:
    return name.partition("/")[0] in _speakers()


def _speakers() -> dict[str, None]:
    return dict.fromkeys(row.provider for row in dialects().rows)


def _found(name: str, field: str, wrong: Callable[[str, str], NoReturn]) -> Dialect:
    try:
        return wire.dialect_of(name)
    except InvalidRequest as problem:
        wrong(problem.reason, field)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = tuple(known)
    near = nearest(name, names)
    advice = f"did you mean {near}?" if near else "`anaphora wires` lists all of them"
    return f"no {what} {name!r}; {advice}"
