"""Grants, drains and changes in PostgreSQL, as every node sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.waiting import until

from anaphora.daemon.home import Home, init
from anaphora.daemon.home.extensions import Grants
from anaphora.daemon.home.settings import SettingsFiles
from anaphora.daemon.nodes import directory, generations
from anaphora.daemon.nodes.membership import ChangeFeed, check_token_key
from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.postgres import schema
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect
from anaphora.postgres.lane import Lane


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Lane]:
    address = PostgresAddress.parse(url)
    connection = await connect(address)
    await schema.create(connection)
    await connection.close()
    lane = Lane(address, "test")
    try:
        yield lane
    finally:
        await lane.close()


def test_generations_are_numbered_and_the_same_text_is_no_new_one(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as lane:
            assert await generations.latest(lane) is None
            first, is_new = await generations.apply(lane, "a: {}\n", by="alice")
            assert (first.number, first.applied_by, is_new) == (1, "alice", True)
            assert await generations.apply(lane, "a: {}\n", by="bob") == (first, False)
            second, is_new = await generations.apply(lane, "b: {}\n", by="bob")
            assert (second.number, is_new) == (2, True)
            assert await generations.apply(lane, "c: {}\n", by="x", only_first=True) == (
                second,
                False,
            )
            # An earlier text again is a later generation: nothing goes back.
            third, _ = await generations.apply(lane, "a: {}\n", by="alice")
            assert (third.number, third.digest) == (3, first.digest)
            assert await generations.latest(lane) == third
            assert await generations.find(lane, 1) == first
            assert await generations.find(lane, 2) == second
            assert await generations.find(lane, 9) is None

    asyncio.run(run())


def test_generations_that_are_applied_together_get_different_numbers(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as lane:
            lanes = [Lane(lane.address, f"{number}") for number in range(4)]
            found = await asyncio.gather(
                *(
                    generations.apply(one, f"app-{number}: {{}}\n", by="x")
                    for number, one in enumerate(lanes)
                )
            )
            for one in lanes:
                await one.close()
            assert sorted(one.number for one, _ in found) == [1, 2, 3, 4]

    asyncio.run(run())


def test_changes_arrive_by_notification_and_by_looking(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as lane:
            seen: list[str] = []

            def handler(name: str) -> Callable[[Lane], Awaitable[None]]:
                async def note(_: Lane) -> None:
                    seen.append(name)

                return note

            names = ("tokens", "grant_generations", "drains")
            feed = ChangeFeed(lane.address, {name: handler(name) for name in names})
            running = asyncio.create_task(feed.run())
            try:
                await until(lambda: len(seen) == 3)
                assert seen == list(names)  # once each when it starts
                await generations.apply(lane, "a: {}\n", by="x")
                await until(lambda: seen[3:] == ["grant_generations"])
                await lane.execute(
                    "INSERT INTO tokens (id, app, digest, created) VALUES ('t', 'a', '', 0)"
                )
                await until(lambda: seen[4:] == ["tokens"])
                # Without its notification, which a new connection would not have had.
                await lane.execute("UPDATE changes SET version = version + 1 WHERE name = 'tokens'")
                await until(lambda: seen[5:] == ["tokens"])
                # The feed connects again by itself, and reads all again.
                await lane.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'anaphora changes'"
                )
                await lane.execute("INSERT INTO drains (node) VALUES ('node-1')")
                await until(lambda: seen[6:9] == list(names))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.soak
def test_a_handler_that_fails_is_called_again(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with opened(database_url) as lane:
            failures = [ValueError("first"), ValueError("second")]
            done: list[bool] = []

            async def handler(_: Lane) -> None:
                if failures:
                    raise failures.pop()
                done.append(True)

            running = asyncio.create_task(ChangeFeed(lane.address, {"tokens": handler}).run())
            try:
                await until(lambda: bool(done))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert caplog.text.count("a change was not read: ValueError") == 2

    asyncio.run(run())


def test_only_nodes_that_run_are_drained(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as lane:
            insert = "INSERT INTO nodes (name, version, state) VALUES ($1, '1', $2)"
            for name, state in (("node-1", "alive"), ("node-2", "alive"), ("old", "ended")):
                await lane.execute(insert, name, state)
            assert await directory.set_drained(lane, "node-1", True)
            assert not await directory.set_drained(lane, "node-1", True)
            assert await directory.drained_for(lane, "node-1") is not None
            assert await directory.drained_for(lane, "node-2") is None
            with pytest.raises(InvalidRequest, match="no node nod-2 runs; did you mean node-2"):
                await directory.set_drained(lane, "nod-2", True)
            with pytest.raises(InvalidRequest, match="no node old runs; there are: node-1, node-2"):
                await directory.set_drained(lane, "old", False)
            # A node that does not run at the moment can be put back into service.
            await lane.execute(
                "UPDATE nodes SET state = 'dead', ended = now() WHERE name = 'node-1'"
            )
            assert await directory.set_drained(lane, "node-1", False)

    asyncio.run(run())


def test_the_key_of_token_hashes_is_the_same_on_all_nodes(
    database_url: str, tmp_path: Path
) -> None:
    async def run() -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        init(first)
        init(second)
        async with opened(database_url) as lane:
            await check_token_key(lane, Home.open(first))
            await check_token_key(lane, Home.open(first))
            with pytest.raises(
                InvalidConfig, match=r"second/tokens\.key: is not the key"
            ) as caught:
                await check_token_key(lane, Home.open(second))
            key = Home.open(first).token_key_file
            stored = await lane.fetchval("SELECT value FROM settings")
            assert key.read_text().strip() not in (stored, str(caught.value))
            Home.open(second).token_key_file.write_bytes(key.read_bytes())
            await check_token_key(lane, Home.open(second))

    asyncio.run(run())


# ── What a node serves ───────────────────────────────────────────────────────────────────────────

APP = """\
{name}:
  capabilities_grant: [llm_complete]
  llm: {{providers: [{provider}], models: ["*"], usd_per_day: {usd}}}
"""


def text(name: str = "app", provider: str = "local", usd: str = "1.00") -> str:
    return APP.format(name=name, provider=provider, usd=usd)


def generation(number: int, text: str) -> generations.GrantGeneration:
    return generations.GrantGeneration(
        number=number, digest="", text=text, applied_at=0.0, applied_by="x"
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init(tmp_path)
    found = Home.open(tmp_path)
    found.llm_yaml.write_text(
        "providers: {local: {wire: openai_chat, base_url: 'http://localhost:1'}}\n"
        "daemon: {store: 'postgresql://localhost/x'}\n"
    )
    found.extensions_yaml.write_text(text())
    return found


def test_the_stored_generation_is_served_and_a_file_that_differs_is_reported(home: Home) -> None:
    files = SettingsFiles(home)
    files.load()
    files.use_generation(generation(7, text(usd="2.00")))
    assert files.changed()
    assert files.reload().grants == Grants.from_text(text(usd="2.00"), "generation 7")
    assert not files.changed()
    [problem] = files.problems
    assert problem.startswith(f"{home.extensions_yaml}: differs from generation 7 of the grants")
    # Other comments are the same grants.
    home.extensions_yaml.write_text("# ours\n" + text(usd="2.0"))
    assert files.changed()
    files.reload()
    assert not files.problems
    home.extensions_yaml.write_text("app: [")
    assert files.reload().grants.apps["app"].llm.nano_usd_per_day == 2_000_000_000
    assert "extensions.yaml:1" in files.problems[0]


def test_a_node_needs_no_file(home: Home) -> None:
    home.extensions_yaml.unlink()
    files = SettingsFiles(home)
    assert files.load().grants.apps == {}
    files.use_generation(generation(1, text()))
    assert set(files.reload().grants.apps) == {"app"}
    assert not files.problems


def test_no_older_generation_is_applied(home: Home) -> None:
    files = SettingsFiles(home)
    files.load()
    files.use_generation(generation(2, text(usd="2.00")))
    files.reload()
    files.use_generation(generation(1, text(usd="5.00")))
    assert not files.changed()
    assert files.reload().grants.apps["app"].llm.nano_usd_per_day == 2_000_000_000


def test_a_provider_that_this_node_does_not_have_is_reported(home: Home) -> None:
    files = SettingsFiles(home)
    files.load()
    home.extensions_yaml.unlink()
    files.use_generation(generation(3, text(provider="eu")))
    assert files.reload().grants.apps["app"].llm.providers == ()
    assert files.problems == (
        "generation 3:3: app.llm.providers[0]: llm.yaml of this node has no provider or route 'eu'",
    )


def test_a_generation_that_cannot_be_read_keeps_the_one_before(home: Home) -> None:
    """A newer version may write fields that this one does not know."""
    files = SettingsFiles(home)
    files.load()
    files.use_generation(generation(1, text()))
    files.reload()
    files.use_generation(generation(2, text() + "  newer: true\n"))
    for _ in range(2):
        assert set(files.reload().grants.apps) == {"app"}
        assert not files.changed()
        assert files.generation is not None
        assert files.generation.number == 1
        assert "generation 2:4" in files.problems[0]
