"""Tokens and handles: small tables, in SQL for both stores. `$1` is the first value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from . import HandleKind, HandleRow, TokenBudget, TokenRow
from .budgets import BUDGET

_HANDLE_FIELDS = "kind, id, app, provider, created, tokens"
ADD_HANDLE = (
    f"INSERT INTO handles ({_HANDLE_FIELDS}) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (kind, id, provider) DO UPDATE SET created = excluded.created,"
    " tokens = excluded.tokens WHERE handles.app = excluded.app"
)
#: Number of ids looked up in one statement.
_AT_ONCE = 32
_OWN = f"kind = $1 AND app = $2 AND id IN ({', '.join(f'${3 + n}' for n in range(_AT_ONCE))})"
#: Maximum number of removed rows at once, since all calls wait meanwhile.
_REMOVED_AT_ONCE = 2_000
SIGNED_SINCE = "SELECT signed_since FROM audit_logs WHERE name = $1 AND key_id = $2"
_SIGN = (
    "INSERT INTO audit_logs (name, signed_since, key_id) VALUES ($1, $2, $3) ON CONFLICT (name)"
    " DO UPDATE SET signed_since = excluded.signed_since, key_id = excluded.key_id"
)
_TOKEN_FIELDS = "id, app, digest, created, expires, revoked"
BUDGET_FIELDS = (*_TOKEN_FIELDS.split(", "), "parent", "nano_usd", "models", "label")
_BUDGET_FIELDS = ", ".join(BUDGET_FIELDS)
ADD_BUDGET = (
    f"INSERT INTO budgets ({_BUDGET_FIELDS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
)
#: A token, if it is narrowed, and all that were narrowed from it.
_NARROWED = (
    "(WITH RECURSIVE ended (id) AS (SELECT id FROM budgets WHERE id = $1 OR parent = $1 UNION"
    " SELECT budgets.id FROM budgets JOIN ended ON budgets.parent = ended.id) SELECT id FROM ended)"
)
_REVOKE_NARROWED = f"UPDATE budgets SET revoked = $2 WHERE revoked IS NULL AND id IN {_NARROWED}"
#: Revokes a new token whose parent was revoked while it was made.
END_ORPHAN = (
    "UPDATE budgets SET revoked = created WHERE id = $1 AND parent IN (SELECT above.id FROM budgets"
    " AS above WHERE above.revoked IS NOT NULL AND above.id = budgets.parent UNION ALL"
    " SELECT tokens.id FROM tokens WHERE revoked IS NOT NULL AND tokens.id = budgets.parent)"
)
#: A narrowed token, and those that it was narrowed from.
_CHAIN = (
    f"WITH RECURSIVE chain AS (SELECT * FROM budgets WHERE digest = $1 UNION"
    " SELECT budgets.* FROM budgets JOIN chain ON budgets.id = chain.parent)"
    f" SELECT {_BUDGET_FIELDS} FROM chain"
)
_COUNT_NARROWED = "SELECT count(*) FROM budgets WHERE expires > $1 AND app = $2 AND revoked IS NULL"
#: Looks at one day only: those that have spent something stay for a month or longer.
_UNUSED = (
    "(SELECT id FROM budgets WHERE expires BETWEEN $1 - 86400.0 AND $1 AND NOT EXISTS"
    f" (SELECT 1 FROM balances WHERE balances.app = '{BUDGET}' || budgets.id)"
    f" ORDER BY expires, id LIMIT {_REMOVED_AT_ONCE})"
)
_SPENT = (
    "(SELECT CAST(coalesce(sum({0}), 0) AS bigint) FROM balances"
    f" WHERE balances.app = '{BUDGET}' || budgets.id)"
)


class SmallTables(ABC):
    _clock: Callable[[], float]

    @abstractmethod
    async def _flush(self) -> None:
        """Returns when all queued changes have been tried."""

    @abstractmethod
    async def _fetch(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]: ...

    @abstractmethod
    async def _change(self, sql: str, *values: Any, kept: bool = False) -> None:
        """`kept`: written later if the disk is full."""

    # ── The audit log ────────────────────────────────────────────────────────────────────────────

    async def record_signed_rows(self, log: str, first: int, key: str) -> None:
        known = await self._fetch(SIGNED_SINCE, log, key)
        if not known or first <= known[0][0] != 1:
            await self._change(_SIGN, log, 1 if known else first, key)

    # ── Tokens ───────────────────────────────────────────────────────────────────────────────────

    async def tokens(self) -> list[TokenRow]:
        rows = await self._fetch(f"SELECT {_TOKEN_FIELDS} FROM tokens ORDER BY created, id")
        narrowed = await self._fetch(
            f"SELECT {_BUDGET_FIELDS} FROM budgets WHERE expires > $1", self._clock()
        )
        return [*map(_token, rows), *map(_token, narrowed)]

    async def narrowed(self, digest: bytes) -> list[TokenRow]:
        rows = await self._fetch(_CHAIN, digest)
        return [_token(row) for row in rows]

    async def count_narrowed(self, app: str, now: float) -> int:
        ((count,),) = await self._fetch(_COUNT_NARROWED, now, app)
        return int(count)

    async def remove_unused_budgets(self, before: float) -> None:
        await self._change(f"DELETE FROM budgets WHERE id IN {_UNUSED}", before)

    async def add_token(self, token: TokenRow) -> None:
        if token.nano_usd is not None:
            await self._change(ADD_BUDGET, *budget_values(token))
            await self._change(END_ORPHAN, token.id)
            return
        await self._change(
            f"INSERT INTO tokens ({_TOKEN_FIELDS}) VALUES ($1, $2, $3, $4, $5, $6)",
            token.id, token.app, token.digest, token.created, token.expires, token.revoked,
        )  # fmt: skip

    async def change_token(
        self, id: str, *, expires: float | None = None, revoked: float | None = None
    ) -> None:
        if revoked is not None:  # first the narrowed ones: after a kill in between none is left
            await self._change(_REVOKE_NARROWED, id, revoked)
        if expires is not None:
            await self._change("UPDATE budgets SET expires = $1 WHERE id = $2", expires, id)
        await self._change(
            "UPDATE tokens SET expires = coalesce($1, expires), revoked = coalesce($2, revoked)"
            " WHERE id = $3",
            expires, revoked, id,
        )  # fmt: skip
        if revoked is not None:  # those that were narrowed meanwhile
            await self._change(_REVOKE_NARROWED, id, revoked)

    async def budgets(self, app: str | None = None, *, since: float = 0.0) -> list[TokenBudget]:
        await self._flush()
        rows = await self._fetch(
            f"SELECT {_BUDGET_FIELDS}, {_SPENT.format('spent')}, {_SPENT.format('held')}"
            " FROM budgets WHERE expires > $1"
            " AND (CAST($2 AS text) IS NULL OR app = CAST($2 AS text)) ORDER BY created, id",
            since, app,
        )  # fmt: skip
        return [TokenBudget(token=_token(row[:-2]), spent=row[-2], held=row[-1]) for row in rows]

    # ── Handles ──────────────────────────────────────────────────────────────────────────────────

    async def add_handle(self, handle: HandleRow) -> None:
        await self._change(ADD_HANDLE, *_values(handle), kept=True)

    async def handle(self, kind: HandleKind, id: str, app: str) -> HandleRow | None:
        rows = await self._handles("kind = $1 AND id = $2 AND app = $3", kind, id, app)
        return rows[-1] if rows else None

    async def own_handles(
        self, kind: HandleKind, ids: Iterable[str], app: str
    ) -> dict[str, HandleRow]:
        found: dict[str, HandleRow] = {}
        # PostgreSQL accepts no text with a null byte; no id has one.
        wanted = [id for id in dict.fromkeys(ids) if "\0" not in id]
        for begin in range(0, len(wanted), _AT_ONCE):
            some = wanted[begin : begin + _AT_ONCE]
            # Always the same number of values, so that the statement is prepared once.
            some += some[-1:] * (_AT_ONCE - len(some))
            rows = await self._handles(_OWN, kind, app, *some)
            found.update((row.id, row) for row in rows)
        return found

    async def handles(self, kind: HandleKind, app: str) -> list[HandleRow]:
        return await self._handles("kind = $1 AND app = $2", kind, app)

    async def _handles(self, condition: str, *values: str) -> list[HandleRow]:
        rows = await self._fetch(f"SELECT {_HANDLE_FIELDS} FROM handles WHERE {condition}", *values)
        names = _HANDLE_FIELDS.split(", ")
        found = [HandleRow(**dict(zip(names, row, strict=True))) for row in rows]
        # Not in SQL: to have them in order, SQLite would read all rows of the kind by their age.
        return sorted(found, key=lambda row: (row.created, row.id))

    async def remove_handle(self, kind: HandleKind, id: str, app: str) -> None:
        await self._change(
            "DELETE FROM handles WHERE kind = $1 AND id = $2 AND app = $3", kind, id, app
        )

    async def remove_old_handles(self, kind: HandleKind, before: float) -> None:
        await self._change(
            "DELETE FROM handles WHERE kind = $1 AND created <= (SELECT max(created) FROM (SELECT"
            " created FROM handles WHERE kind = $1 AND created < $2 ORDER BY created"
            f" LIMIT {_REMOVED_AT_ONCE}) AS old)",
            kind, before,
        )  # fmt: skip


def _values(handle: HandleRow) -> tuple[Any, ...]:
    return (handle.kind, handle.id, handle.app, handle.provider, handle.created, handle.tokens)


def _token(row: Sequence[Any]) -> TokenRow:
    id, app, digest, created, expires, revoked, *narrowed = row
    token = TokenRow(
        id=id, app=app, digest=digest, created=created, expires=expires, revoked=revoked
    )
    if not narrowed:
        return token
    parent, nano_usd, models, label = narrowed
    return msgspec.structs.replace(
        token, parent=parent, nano_usd=nano_usd, label=label,
        models=msgspec.json.decode(models, type=tuple[str, ...]),
    )  # fmt: skip


def budget_values(token: TokenRow) -> tuple[Any, ...]:
    """The values of `ADD_BUDGET`."""
    return (
        token.id, token.app, token.digest, token.created, token.expires, token.revoked,
        token.parent, token.nano_usd, msgspec.json.encode(token.models).decode(), token.label,
    )  # fmt: skip
