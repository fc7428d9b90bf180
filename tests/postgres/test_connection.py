"""Connections to a real PostgreSQL: settings that are refused, TLS, passwords, poolers, lanes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from support.certificates import write_certificate
from support.daemon import create_home, llm_yaml
from support.event_loops import in_event_loop
from support.servers import PostgresServer, free_port
from support.tables import each_row
from support.transaction_pooler import TransactionPooler
from support.waiting import PATIENCE

from anaphora.cli.main import main
from anaphora.client.config.secrets import Secret
from anaphora.daemon.home.secrets import SecretsFolder
from anaphora.emulator.server import Emulator
from anaphora.errors import AnaphoraError, InvalidConfig, StoreUnavailable
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import _check, connect
from anaphora.postgres.lane import Lane

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

CANARY = "hunter2-CANARY-0123456789"


@pytest.fixture(scope="module")
def own_server(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresServer]:
    """One that asks for passwords, and offers TLS with a certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = write_certificate(folder, "server")
    with PostgresServer(
        port=free_port(),
        hba=["host all canary 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 trust"],
    ) as server:
        for name, source in (("server.crt", certificate.cert), ("server.key", certificate.key)):
            target = server.data / name
            shutil.copy(source, target)
            target.chmod(0o600)
            server._own(target)
        server.execute("ALTER SYSTEM SET ssl TO on")
        server.execute("SELECT pg_reload_conf()")
        server.execute(f"CREATE ROLE canary LOGIN PASSWORD '{CANARY}'")
        (server.folder / "ca.pem").write_bytes(certificate.cert.read_bytes())
        yield server


def address_of(
    server: PostgresServer, query: str = "", user: str = "anaphora", password: str | None = None
) -> PostgresAddress:
    url = f"postgresql://{user}@127.0.0.1:{server.port}/postgres?{query}"
    return PostgresAddress.parse(url, Secret(password) if password is not None else None)


async def connected(address: PostgresAddress) -> dict[str, Any]:
    connection = await connect(address, name="test")
    try:
        row = await connection.fetchrow(
            "SELECT ssl, application_name, current_setting('search_path') AS path"
            " FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE pid = pg_backend_pid()"
        )
        return dict(row)
    finally:
        await connection.close()


def shown(error: BaseException) -> str:
    """All that a collector of tracebacks would save."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@in_event_loop
async def test_a_connection_uses_our_schema_and_has_a_name(database_url: str) -> None:
    found = await connected(PostgresAddress.parse(database_url))
    assert found == {"ssl": False, "application_name": "anaphora test", "path": "anaphora"}


@pytest.mark.soak
@in_event_loop
async def test_a_connection_ends_soon_where_the_machine_of_the_server_is_gone(
    own_server: PostgresServer,
) -> None:
    connection = await connect(address_of(own_server))
    used = connection._transport.get_extra_info("socket")
    assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    await connection.close()


@in_event_loop
async def test_what_is_done_on_a_new_connection_has_an_end(database_url: str) -> None:
    async def stuck(connection: Connection) -> None:
        await connection.execute("SET statement_timeout TO 0; SELECT pg_sleep(600)")

    lane = Lane(PostgresAddress.parse(database_url), "test", on_connect=stuck, timeout=0.1)
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await asyncio.wait_for(lane.fetch("SELECT 1"), PATIENCE)


@in_event_loop
async def test_other_defaults_of_the_database_do_not_matter(own_server: PostgresServer) -> None:
    """Two batches of one app would fail each other where each saw the state of its beginning."""
    change = "ALTER ROLE canary SET default_transaction_isolation TO"
    own_server.execute(f"{change} 'repeatable read'")
    try:
        connection = await connect(address_of(own_server, user="canary", password=CANARY))
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
        await connection.close()
    finally:
        own_server.execute(f"{change} DEFAULT")


@in_event_loop
async def test_tls_verifies_the_certificate(own_server: PostgresServer) -> None:
    ca = quote(str(own_server.folder / "ca.pem"))
    for query in (f"sslmode=verify-full&sslrootcert={ca}", "sslmode=require", ""):
        assert (await connected(address_of(own_server, query)))["ssl"]
    assert not (await connected(address_of(own_server, "sslmode=disable")))["ssl"]
    with pytest.raises(InvalidConfig, match=r"name the certificate authority with \?sslrootcert="):
        await connect(address_of(own_server, "sslmode=verify-full"))
    other = PostgresAddress.parse(
        f"postgresql://anaphora@localhost:{own_server.port}/postgres?sslmode=verify-full&sslrootcert={ca}"
    )
    with pytest.raises(InvalidConfig, match="TLS failed"):  # the certificate is for 127.0.0.1
        await connect(other)


@in_event_loop
async def test_tls_that_is_not_offered_is_named(own_server: PostgresServer) -> None:
    own_server.execute("ALTER SYSTEM SET ssl TO off")
    try:
        own_server.restart()
        with pytest.raises(InvalidConfig, match="does not offer TLS; turn it on there"):
            await connected(address_of(own_server, "sslmode=require"))
    finally:
        own_server.execute("ALTER SYSTEM SET ssl TO on")
        own_server.restart()


@pytest.mark.parametrize(
    ("place", "password", "code", "reason"),
    [
        ("canary@127.0.0.1:{port}/x", f"{CANARY}-wrong", 7, "the password of user 'canary'"),
        ("anaphora@127.0.0.1:{port}/missing", CANARY, 7, "does not exist"),
        ("anaphora@127.0.0.1:1/x", CANARY, 1, "cannot be reached"),
    ],
    ids=["password", "database", "unreachable"],
)
def test_serve_check_exits_with_7_if_the_store_refuses(
    own_server: PostgresServer,
    running_emulator: Emulator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
    password: str,
    code: int,
    reason: str,
) -> None:
    """As `serve` does."""
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {
        "store": f"postgresql://{place.format(port=own_server.port)}",
        "store_password": {"secret": "PG_PASSWORD"},
        "node": "node-1",
    }
    create_home(tmp_path / "home", running_emulator, llm=llm, tokens=False)
    SecretsFolder(tmp_path / "home" / "secrets").write("PG_PASSWORD", Secret(password))
    assert main(["serve", "--check", "--home", str(tmp_path / "home")]) == code
    printed = capsys.readouterr()
    assert reason in printed.err
    assert CANARY not in printed.err + printed.out


@in_event_loop
async def test_a_password_is_used_and_shown_nowhere(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = address_of(own_server, user="canary", password=CANARY)
    await connected(right)
    wrong = address_of(own_server, user="canary", password=f"{CANARY}-wrong")
    with pytest.raises(InvalidConfig, match="the password of user 'canary' was not accepted") as no:
        await connect(wrong)
    assert "see the secret that store_password names" in str(no.value)
    assert CANARY not in shown(no.value)
    lane = Lane(wrong, "test")
    with pytest.raises(StoreUnavailable) as refused:
        await lane.fetch("SELECT 1")
    assert CANARY not in shown(refused.value) + repr(vars(lane)) + caplog.text
    # Neither the environment nor a file of libpq stands in for a secret.
    monkeypatch.setenv("PGPASSWORD", CANARY)
    with pytest.raises(InvalidConfig, match="was not accepted; set store_password"):
        await connect(address_of(own_server, user="canary"))
    gone = PostgresAddress.parse("postgresql://canary@127.0.0.1:1/x", Secret(CANARY))
    with pytest.raises(StoreUnavailable, match="cannot be reached") as unreachable:
        await connect(gone)
    assert CANARY not in shown(unreachable.value)


@pytest.mark.parametrize(
    "setting, refused",
    [
        ("off", True), ("on", False), ("remote_apply", False), ("local", False),
    ],
)  # fmt: skip
@in_event_loop
async def test_commits_must_be_on_the_disk(
    postgres_server: PostgresServer, database_url: str, setting: str, refused: bool
) -> None:
    name = database_url.partition("@/")[2].partition("?")[0]
    postgres_server.execute(f'ALTER DATABASE "{name}" SET synchronous_commit TO {setting}')
    address = PostgresAddress.parse(database_url)
    if refused:
        with pytest.raises(InvalidConfig, match="synchronous_commit is off, so a crash would lose"):
            await connect(address)
    else:
        await connected(address)


@each_row(
    "change, error, message",
    [
        ({"version": 120_017}, InvalidConfig, "is PostgreSQL 12; 13 or newer is required"),
        ({"encoding": "LATIN1"}, InvalidConfig, "has the encoding LATIN1; UTF8 is required"),
        ({"synchronous_commit": "local", "has_standbys": True}, InvalidConfig, "is local, so"),
        ({"read_only": True}, StoreUnavailable, "is read-only"),
        ({}, None, ""),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    change: dict[str, object], error: type[AnaphoraError] | None, message: str
) -> None:
    found = {
        "version": 130_000, "encoding": "UTF8", "synchronous_commit": "on", "has_standbys": False,
        "read_only": False, **change,
    }  # fmt: skip
    address = PostgresAddress.parse("postgresql://app@db.example/ledger")
    if error is None:
        _check(found, address)
    else:
        with pytest.raises(error, match=message):
            _check(found, address)


@in_event_loop
async def test_a_missing_database_or_user_is_named(own_server: PostgresServer) -> None:
    missing = PostgresAddress.parse(f"postgresql://anaphora@127.0.0.1:{own_server.port}/missing")
    with pytest.raises(InvalidConfig, match='database "missing" does not exist'):
        await connect(missing)
    with pytest.raises(InvalidConfig, match='role "nobody_here" does not exist'):
        await connect(address_of(own_server, user="nobody_here"))


@pytest.mark.parametrize("mode", ["transaction", "session"])
@in_event_loop
async def test_a_transaction_pooler_is_refused(own_server: PostgresServer, mode: str) -> None:
    assert own_server.port is not None
    async with TransactionPooler(own_server.port, per_transaction=mode == "transaction") as pooler:
        address = PostgresAddress.parse(
            f"postgresql://anaphora@127.0.0.1:{pooler.port}/postgres?sslmode=disable"
        )
        if mode == "transaction":
            with pytest.raises(InvalidConfig, match="is a pooler in transaction mode"):
                await connect(address)
        else:
            await connected(address)


@in_event_loop
async def test_a_lane_opens_its_connection_again(
    postgres_server: PostgresServer, database_url: str
) -> None:
    opened = []

    async def on_connect(connection: Any) -> None:
        opened.append(connection)

    lane = Lane(PostgresAddress.parse(database_url), "test", on_connect=on_connect)
    first = await lane.fetchval("SELECT pg_backend_pid()")
    with pytest.raises(StoreUnavailable):
        await lane.fetchval("SELECT pg_terminate_backend(pg_backend_pid())")
    assert lane.problem
    assert await lane.fetchval("SELECT pg_backend_pid()") != first
    assert not lane.problem
    assert len(opened) == 2
    # An error of one statement keeps the connection.
    with pytest.raises(Exception, match="division by zero"):
        await lane.fetchval("SELECT 1 / 0")
    assert await lane.fetchval("SELECT 1") == 1
    assert len(opened) == 2
    await asyncio.to_thread(postgres_server.stop)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await lane.fetch("SELECT 1")
    await asyncio.to_thread(postgres_server.start)
    for _ in range(600):
        try:
            assert await lane.fetchval("SELECT 1") == 1
            break
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    else:
        raise AssertionError("never opened again")
    await lane.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await lane.fetch("SELECT 1")


@in_event_loop
async def test_a_lane_that_is_closed_while_it_connects_keeps_no_connection(
    postgres_server: PostgresServer, database_url: str
) -> None:
    connecting, closed = asyncio.Event(), asyncio.Event()

    async def on_connect(_: Connection) -> None:
        connecting.set()
        await closed.wait()

    lane = Lane(PostgresAddress.parse(database_url), "late", on_connect=on_connect)
    reading = asyncio.create_task(lane.fetch("SELECT 1"))
    await connecting.wait()
    await lane.close()
    closed.set()
    with pytest.raises(StoreUnavailable, match="closed"):
        await reading
    assert not lane.is_connected


@in_event_loop
async def test_a_login_that_fails_leaves_no_socket(own_server: PostgresServer) -> None:
    """Also where the server does not answer the end of TLS."""
    ended = asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes all on but the end of TLS, and of the server's connection."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", own_server.port)

        async def answers() -> None:
            writer.write(await from_server.readexactly(1))  # TLS is offered
            with suppress(asyncio.IncompleteReadError):
                while True:
                    head = await from_server.readexactly(5)
                    record = head + await from_server.readexactly(int.from_bytes(head[3:]))
                    if len(record) != 24:  # an alert of TLS 1.3
                        writer.write(record)

        answering = asyncio.create_task(answers())
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                to_server.write(piece)
        for one in (to_server, writer):
            one.close()
            with suppress(ConnectionError):
                await one.wait_closed()
        with suppress(ConnectionError):
            await answering
        ended.set()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        url = f"postgresql://anaphora@127.0.0.1:{port}/missing?sslmode=require"
        with pytest.raises(InvalidConfig, match='database "missing" does not exist'):
            await connect(PostgresAddress.parse(url))
        await asyncio.wait_for(ended.wait(), 15)  # the shutdown of TLS takes 30 s


@in_event_loop
async def test_a_transaction_ends_with_its_caller_where_the_server_hangs(
    postgres_server: PostgresServer, database_url: str
) -> None:
    lane = Lane(PostgresAddress.parse(database_url), "test")
    async with lane.transaction() as connection:
        await connection.execute("CREATE TABLE public.kept (value int)")

    async def insert() -> None:
        async with lane.transaction() as connection:
            await connection.execute("INSERT INTO public.kept VALUES (1)")
            await asyncio.to_thread(postgres_server.pause)
            await connection.execute("INSERT INTO public.kept VALUES (2)", timeout=0.1)

    try:
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await asyncio.wait_for(insert(), 15)
    finally:
        postgres_server.resume()
    assert await lane.fetch("SELECT * FROM public.kept") == []
    await lane.close()


@in_event_loop
@pytest.mark.long
async def test_a_lane_with_patience_fails_all_who_wait_for_a_server_that_hangs(
    postgres_server: PostgresServer, database_url: str
) -> None:
    lane = Lane(PostgresAddress.parse(database_url), "test", timeout=1.0, patience=2.0)
    assert await lane.fetchval("SELECT 1") == 1
    postgres_server.pause()
    try:
        waiting = [lane.fetch("SELECT 1") for _ in range(5)]
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 15)
        assert [type(one) for one in outcomes] == [StoreUnavailable] * 5
        assert lane.problem
    finally:
        postgres_server.resume()
    for _ in range(600):
        with suppress(StoreUnavailable):
            assert await lane.fetchval("SELECT 1") == 1
            break
        await asyncio.sleep(0.05)
    assert not lane.problem
    await lane.close()
