"""Digests of what apps sent, in the store: how many there are, and how long they stay."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

from support.daemon import GRANT, create_home, started_daemon
from support.delegation import app_of, delegating
from support.event_loops import in_event_loop
from support.honest_apps import SYSTEM, Chat
from support.waiting import until

from anaphora.daemon.calls.own_prefixes import OwnPrefixes
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.emulator.server import Emulator

DAY = 86_400.0


def rows(store: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(store)) as database:
        return database.execute(
            "SELECT id, app, bill FROM handles WHERE kind = 'prefix'"
        ).fetchall()


def test_only_apps_that_share_a_cache_leave_digests(emu: Emulator, tmp_path: Path) -> None:
    """Keyed ones: other homes have others for the same prompt. None of its text."""
    names = []
    for home, apps in (("alone", ["one"]), ("both", ["one", "two"]), ("again", ["one", "two"])):
        tokens = create_home(tmp_path / home, emu, extensions=dict.fromkeys(apps, GRANT))
        with started_daemon(tmp_path / home, tokens) as daemon, daemon.client("one") as client:
            chat = Chat("one", "anthropic", "only")
            for _ in range(3):
                chat.ask(client)
        found = rows(tmp_path / home / "store.sqlite")
        names.append({id for id, _, _ in found})
        assert {app for _, app, _ in found} <= {"one"}
        assert SYSTEM[:30].encode() not in (tmp_path / home / "store.sqlite").read_bytes()
    alone, both, again = names
    assert alone == set()
    assert len(both) == len(again) > 0
    assert not both & again


@in_event_loop
async def test_old_digests_are_removed(tmp_path: Path) -> None:
    path, now = tmp_path / "store.sqlite", time.time()
    store = SqliteStore.open(path)
    ages = {"old": 2 * DAY, "new": 60.0}
    for id, age in ages.items():
        row = HandleRow(kind="prefix", id=id, app="one", provider="p", created=now - age, tokens=1)
        await store.add_handle(row)
    await store.add_handle(
        HandleRow(kind="file", id="file", app="one", provider="p", created=now - 2 * DAY)
    )
    prefixes = OwnPrefixes(store, bytes(32))
    prefixes.remove_old(now)
    await until(lambda: len(rows(path)) == 1, "the old ones are removed")
    assert [id for id, _, _ in rows(path)] == ["new"]
    assert await store.handle("file", "file", "one") is not None
    await prefixes.close()
    await store.close()


@in_event_loop
async def test_failure_to_note_a_prefix_loses_no_answer(emu: Emulator, tmp_path: Path) -> None:
    """Nor its bill: the answer has a notice."""
    one, two = (app_of(name, providers=["anthropic"]) for name in ("one", "two"))
    marked = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 20, "system": [marked]}
    body["messages"] = [{"role": "user", "content": "Hello?"}]
    async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
        daemon.service.use_grants([one.grant, two.grant])

        def fail(*_: object) -> None:
            raise RuntimeError("the digests cannot be noted")

        daemon.service.prefixes.add = fail  # type: ignore[assignment, method-assign]
        first = await daemon.service.complete(daemon.request("anthropic", body, app=one))
        again = await daemon.service.complete(daemon.request("anthropic", body, app=one))
        spent = await daemon.spent(one)
    assert first.cost_usd is not None
    assert "verdict_failed" in [notice.code for notice in again.notices]
    assert first.reply.message.parts
    assert spent.today > 0
