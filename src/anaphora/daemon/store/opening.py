"""The store that a home names: SQLite in its folder, or PostgreSQL for several nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anaphora.daemon.home.config import DaemonConfig
from anaphora.daemon.home.secrets import read_password
from anaphora.errors import InvalidConfig

if TYPE_CHECKING:
    from anaphora.client.config.secrets import Secret
    from anaphora.daemon.home import Home
    from anaphora.daemon.home.config import PasswordConfig
    from anaphora.postgres.address import PostgresAddress

    from .interface import Store


def store_address(home: Home, config: DaemonConfig) -> PostgresAddress | None:
    """Address of PostgreSQL; None if the store is SQLite. Raises `InvalidConfig` and
    `MissingSecret`."""
    if config.store is None:
        return None
    from anaphora.postgres.address import PostgresAddress

    try:
        return PostgresAddress.parse(config.store, password(home, config.store_password, "store"))
    except InvalidConfig as problem:
        if problem.file:
            raise
        raise InvalidConfig(f"daemon.store: {problem}", file=str(home.llm_yaml)) from None


def password(home: Home, config: PasswordConfig | None, field: str) -> Secret | None:
    """The password of `store_password` or `shared_password`, or None."""
    return None if config is None else read_password(home, config.secret, f"{field}_password")


@asynccontextmanager
async def store_for_command(home: Home, config: DaemonConfig) -> AsyncIterator[Store]:
    """Opens the store for a command while no daemon runs on the home. With PostgreSQL other nodes
    may be running."""
    from .sqlite import SqliteStore

    address = store_address(home, config)
    store: Store
    if address is None:
        store = SqliteStore.open(home.store)
    else:
        from .postgres import PostgresStore

        store = await PostgresStore.open(address)
    try:
        yield store
    finally:
        await store.close()
