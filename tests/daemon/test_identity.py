"""Tokens of apps and administrators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anaphora.client.config.secrets import Secret
from anaphora.daemon.access import identity
from anaphora.daemon.access.identity import ADMIN, Directory
from anaphora.daemon.access.tokens import NarrowedToken
from anaphora.daemon.home import Home, init
from anaphora.daemon.home.extensions import Grants
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.values import SOCKET, Peer
from anaphora.errors import GrantRateLimited, InvalidRequest, StoreUnavailable, Unauthenticated

HERE = Peer("127.0.0.1")
GRANTS = Grants.from_text("a: {uids: [7, 8]}\nb: {requires: [llm_complete]}")


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Opened:
    """A directory over a real store, driven by one event loop."""

    def __init__(self, path: Path) -> None:
        init(path)
        self.home, self.clock = Home.open(path), Clock()
        self.loop = asyncio.Runner()
        self.store = SqliteStore.open(self.home.store, clock=self.clock)
        self.directory = self.reopen()

    def reopen(self) -> Directory:
        """As after a restart."""
        return self.loop.run(Directory.open(self.home, self.store, GRANTS, clock=self.clock))

    def create(self, app: str, lifetime: float | None = None) -> tuple[str, Secret]:
        new = self.loop.run(self.directory.create_token(app, lifetime=lifetime))
        return new.row.id, new.token

    def close(self) -> None:
        self.loop.run(self.store.close())
        self.loop.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "home")
    yield opened
    opened.close()


def is_valid(directory: Directory, token: Secret, peer: Peer = HERE) -> bool:
    try:
        directory.authenticate(token, peer)
    except Unauthenticated:
        return False
    return True


def test_a_token_names_its_app(opened: Opened) -> None:
    token_id, token = opened.create("b")
    for directory in (opened.directory, opened.reopen()):
        app = directory.authenticate(token, HERE)
        assert (app.id, app.token_id, app.grant) == ("b", token_id, GRANTS.apps["b"])
    assert opened.directory.token_apps() == {"b"}


def test_a_token_has_256_bits_and_is_not_stored(opened: Opened) -> None:
    _, token = opened.create("a")
    text = token.reveal()
    assert text.startswith("ana_")
    assert len(text.removeprefix("ana_")) == 43
    assert text not in repr(opened.directory.tokens())
    for file in opened.home.path.rglob("*"):
        assert file.is_dir() or text.encode() not in file.read_bytes()


def test_hashes_depend_on_the_key_of_the_home(opened: Opened, tmp_path: Path) -> None:
    """A copied store is of no use without the key."""
    _, token = opened.create("b")
    init(tmp_path / "other")
    other = Home.open(tmp_path / "other")
    stolen = opened.loop.run(Directory.open(other, opened.store, GRANTS))
    assert not is_valid(stolen, token)


@pytest.mark.parametrize(
    "changed", ["", "ana_", "{}x", "x{}", "{} ", "\N{SNOWMAN}", "\ud800", "a" * 100_000]
)
def test_other_tokens_are_refused(opened: Opened, changed: str) -> None:
    _, token = opened.create("b")
    assert not is_valid(opened.directory, Secret(changed.format(token.reveal())))


def test_an_app_without_a_grant_may_do_nothing(opened: Opened) -> None:
    _, token = opened.create("unknown")
    assert opened.directory.authenticate(token, HERE).grant.capabilities == frozenset()
    assert opened.directory.grant("unknown") is None


def test_rotation_overlaps(opened: Opened) -> None:
    old_id, old = opened.create("b")
    _, new = opened.create("b")
    opened.loop.run(opened.directory.expire_token(old_id, after=60))
    assert is_valid(opened.directory, old)
    opened.clock.now += 60
    for directory in (opened.directory, opened.reopen()):
        assert not is_valid(directory, old)
        assert is_valid(directory, new)


def test_an_expired_token_stays_expired_when_the_clock_goes_back(opened: Opened) -> None:
    _, token = opened.create("b", lifetime=60)
    opened.clock.now += 61
    assert not is_valid(opened.directory, token)
    opened.clock.now -= 61
    assert not is_valid(opened.directory, token)


def test_a_clock_that_was_ahead_is_followed_when_it_is_right_again(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart: a day ahead for a moment, and behind for longer than a mistake."""
    ticks = time.monotonic()
    monkeypatch.setattr(identity, "monotonic", lambda: ticks)
    _, token = opened.create("b", lifetime=3600)
    directory, start = opened.reopen(), opened.clock.now
    opened.clock.now = start + 86_400
    assert not is_valid(directory, token)
    opened.clock.now = start
    for seconds in (0, 30, 31):
        ticks += seconds
        opened.clock.now += seconds
        assert is_valid(directory, token) is (seconds == 31)
    assert directory.now() == opened.clock.now
    ticks += 10
    opened.clock.now -= 3600  # and a step back is no reason to go back at once
    assert directory.now() == start + 61


def test_revoked_at_once(opened: Opened) -> None:
    """Running streams learn of it, and a restart does not forget it."""
    token_id, token = opened.create("b")
    ended: list[str] = []
    opened.directory.on_revoke(ended.append)
    opened.loop.run(opened.directory.revoke_token(token_id))
    assert ended == [token_id]
    assert not opened.directory.is_valid(token_id)
    for directory in (opened.directory, opened.reopen()):
        assert not is_valid(directory, token)
    with pytest.raises(InvalidRequest, match="there is no token"):
        opened.loop.run(opened.directory.revoke_token("tok_unknown"))


@pytest.mark.parametrize("is_rotated", [False, True])
def test_each_narrowed_token_ends_once(opened: Opened, is_rotated: bool) -> None:
    """On this node and another one, also if the token above it is not valid any more. To look at
    all of them for each of them would stop a node for minutes."""
    token_id, _ = opened.create("b")
    wanted = NarrowedToken.checked(usd=1, models=None, seconds=3600)
    made = [opened.directory.narrow("b", wanted, parent=token_id) for _ in range(5)]
    ids = [opened.loop.run(one).row.id for one in made]
    if is_rotated:
        opened.loop.run(opened.directory.expire_token(token_id, after=60))
        opened.clock.now += 61
    ended: list[list[str]] = []
    for directory in (opened.directory, other := opened.reopen()):
        ended.append([])
        directory.on_revoke(ended[-1].append)
        assert all(map(directory.is_valid, ids))
    opened.loop.run(opened.directory.revoke_token(token_id))
    for directory in (opened.directory, other):
        opened.loop.run(directory.refresh())
        assert not any(map(directory.is_valid, ids))
    assert [sorted(one) for one in ended] == [sorted([token_id, *ids])] * 2


def test_revoked_also_where_the_store_cannot_write(opened: Opened) -> None:
    token_id, token = opened.create("b")

    class Full:
        async def change_token(self, id: str, **fields: float) -> None:
            raise StoreUnavailable("the disk is full")

    opened.directory._store = Full()  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        opened.loop.run(opened.directory.revoke_token(token_id))
    assert not is_valid(opened.directory, token)


def test_uids_are_required_on_the_socket(opened: Opened) -> None:
    _, token = opened.create("a")
    assert is_valid(opened.directory, token, Peer(SOCKET, 7))
    assert not is_valid(opened.directory, token, Peer(SOCKET, 9))
    assert not is_valid(opened.directory, token, Peer(SOCKET, None))
    assert is_valid(opened.directory, token, HERE)


def test_administrators(opened: Opened) -> None:
    """The home's owner on the socket, or an administrator's token; never an app's token."""
    directory, owner = opened.directory, opened.home.owner
    admin_id, admin = opened.create(ADMIN, lifetime=60)
    _, app = opened.create("b")
    assert directory.is_admin(None, Peer(SOCKET, owner))
    assert not directory.is_admin(None, Peer(SOCKET, owner + 1))
    assert not directory.is_admin(None, Peer(SOCKET, None))
    assert not directory.is_admin(None, Peer("127.0.0.1", owner))
    assert not directory.is_admin(app, Peer(SOCKET, owner))
    assert directory.is_admin(admin, HERE)
    assert not is_valid(directory, admin), "an administrator's token is no app's token"
    opened.loop.run(directory.revoke_token(admin_id))
    assert not directory.is_admin(admin, HERE)


def test_failed_logins_are_limited_per_peer(opened: Opened) -> None:
    directory, wrong = opened.directory, Secret("ana_wrong")
    _, token = opened.create("b")

    def failures(*peers: Peer) -> int:
        """Until one is limited."""
        for count in range(100):
            try:
                directory.authenticate(wrong, peers[count % len(peers)])
            except Unauthenticated:
                continue
            except GrantRateLimited:
                return count
        raise AssertionError("never limited")

    assert failures(HERE) == 20
    assert failures(Peer("10.0.0.1")) == 20
    assert failures(Peer("2001:db8::1"), Peer("2001:db8::2")) == 20, "one network"
    assert failures(Peer(SOCKET, 1)) == 20
    assert is_valid(directory, token), "apps share an address"
    with pytest.raises(GrantRateLimited) as limited:
        directory.authenticate(wrong, HERE)
    assert limited.value.retry_after == pytest.approx(3.0)
    opened.clock.now += 3
    assert failures(HERE) == 1
