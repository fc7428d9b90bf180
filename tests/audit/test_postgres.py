"""The log in PostgreSQL: a chain for each epoch of each node, anchors over all of them, and what is
found where the database was changed by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.audit_logs import envelope, settle, with_tests, written
from support.postgres_logs import (
    KEY,
    add_node,
    declare_dead,
    execute,
    in_database,
    kill_chain_writers,
    postgres_log,
)
from support.servers import PostgresServer

from anaphora.audit import AuditEnvelope, AuditLog, log_postgres, prune, rows, verify
from anaphora.audit.envelope import (
    AnchorRow,
    AuditRow,
    Boundary,
    ChainMark,
    LostRow,
    PrunedChainsRow,
    PrunedRow,
    RecoveryRow,
    StartRow,
    decode,
)
from anaphora.audit.log_postgres import PostgresLog, append_rows, write_anchor
from anaphora.audit.moving import copy_log
from anaphora.audit.reading import VerifiedLog, update_anchor
from anaphora.audit.side_files import key_id
from anaphora.audit.writer import LogWriter
from anaphora.errors import AnaphoraError, AnchorMismatch, ChainBroken, InvalidRequest, Io

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[tuple[PostgresLog, str]]:
    with postgres_log(postgres_server) as found:
        yield found


def checked(log: PostgresLog, anchor: Path | None = None, *, key_since: int = 1) -> VerifiedLog:
    verified = verify(log, anchor=anchor, key_since=key_since)
    assert verified.signed_anchors is not None
    return verified


def kinds(log: PostgresLog) -> list[tuple[int, str]]:
    return [(row.chain, type(row.content).__name__.removesuffix("Row")) for row in rows(log)]


def request_ids(log: PostgresLog) -> list[str]:
    contents = [row.content for row in rows(log)]
    return [one.request_id or "" for one in contents if isinstance(one, AuditEnvelope)]


def anchors(url: str) -> list[AnchorRow]:
    lines = execute(url, "SELECT line FROM audit_rows WHERE chain = 0 ORDER BY seq")
    contents = [decode(line).content for (line,) in lines if isinstance(line, bytes)]
    return [one for one in contents if isinstance(one, AnchorRow)]


def fill(log: PostgresLog, url: str, name: str, count: int) -> int:
    """The chain of a node that wrote calls and stopped."""
    node = add_node(url, name)
    with AuditLog(log.of_node(lambda: node), node=name) as opened:
        for number in range(count):
            opened.append(envelope(number))
        return opened.epoch


# ── Chains ───────────────────────────────────────────────────────────────────────────────────────


def test_each_epoch_of_a_node_has_a_chain_of_its_own(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    first, second = fill(log, url, "node-a", 2), fill(log, url, "node-a", 1)
    assert kinds(log) == [
        *[(first, kind) for kind in ("Start", "AuditEnvelope", "AuditEnvelope", "Stop")],
        *[(second, kind) for kind in ("Start", "AuditEnvelope", "Stop")],
    ]
    contents = [row.content for row in rows(log)]
    assert {one.epoch for one in contents} == {first, second}
    starts = [one for one in contents if isinstance(one, StartRow)]
    assert {one.node for one in starts} == {"node-a"}
    assert len({one.key_id for one in starts}) == 1
    assert [row.seq for row in rows(log)] == [1, 2, 3, 4, 1, 2, 3]
    verified = checked(log)
    assert [(one.state, one.rows, one.anchored) for one in verified.chains] == [
        ("stopped", 4, 4),
        ("stopped", 3, 3),
    ]
    assert (verified.rows, verified.writing) == (7, False)


def test_nodes_write_at_the_same_time(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    count, names = 40, ("node-a", "node-b", "node-c")
    writers = [threading.Thread(target=fill, args=(log, url, name, count)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    verified = checked(log)
    assert {chain.name for chain in verified.chains} == {*names}
    assert [chain.rows for chain in verified.chains] == [count + 2] * 3
    assert sorted(request_ids(log)) == sorted([f"req-{number}" for number in range(count)] * 3)


def test_rows_of_all_chains_are_read_in_the_order_of_their_commits(
    place: tuple[PostgresLog, str],
) -> None:
    log, url = place
    nodes = [add_node(url, name) for name in ("node-a", "node-b")]
    with (
        AuditLog(log.of_node(lambda: nodes[0]), node="node-a") as first,
        AuditLog(log.of_node(lambda: nodes[1]), node="node-b") as second,
    ):
        for number in range(6):
            writer = (first, second)[number % 2]
            writer.append(envelope(number))
            writer.flush()
        assert request_ids(log) == [f"req-{number}" for number in range(6)]
        found = log.row(first.epoch, 2)
        assert found is not None
        assert isinstance(found.content, AuditEnvelope)
        assert log.row(first.epoch, 100) is None


def test_pages_of_a_long_log_are_read_one_after_another(
    place: tuple[PostgresLog, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, url = place
    monkeypatch.setattr(log_postgres, "PAGE", 7)
    monkeypatch.setattr("anaphora.audit.chains.PAGE", 7)
    fill(log, url, "node-a", 20)
    fill(log, url, "node-b", 20)
    assert request_ids(log) == [f"req-{number}" for number in range(20)] * 2
    assert checked(log).rows == 44


def test_writing_needs_a_key(place: tuple[PostgresLog, str]) -> None:
    log, _ = place
    with pytest.raises(InvalidRequest, match="needs the key of the digests"):
        AuditLog(PostgresLog(log.address))


@pytest.mark.parametrize("options", [{"keep_days": 1}, {"anchor": "anchor.json"}])
def test_options_for_files_are_refused(
    place: tuple[PostgresLog, str], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match="no anchor and no keep_days of one writer"):
        AuditLog(place[0], **options)


_NOT_CLOSED = """
import sys
from anaphora.audit import AuditLog
from anaphora.audit.log_postgres import PostgresLog
from anaphora.postgres.address import PostgresAddress
from support.audit_logs import envelope
log = AuditLog(PostgresLog(PostgresAddress.parse(sys.argv[1]), key=bytes(range(32))))
log.append(envelope(7))
"""


def test_a_log_that_is_not_closed_is_closed_at_exit(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    subprocess.run([sys.executable, "-c", _NOT_CLOSED, url], check=True, env=with_tests())
    assert [kind for _, kind in kinds(log)] == ["Start", "AuditEnvelope", "Stop"]
    assert checked(log).chains[0].state == "stopped"


def test_a_forked_process_leaves_the_log_of_its_parent_alone(
    place: tuple[PostgresLog, str],
) -> None:
    log, _ = place
    with AuditLog(log, node="node-a") as writer:
        child = os.fork()
        if not child:
            code = 1
            try:
                writer.append(envelope())
            except Io as problem:
                code = 0 if "open one in each process" in str(problem) else 2
            writer.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.append(envelope(1))
        writer.flush()
    assert request_ids(log) == ["req-1"]


def test_a_node_with_another_key_is_refused(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    other = PostgresLog(log.address, key=bytes(32))
    with (
        AuditLog(log, node="node-a"),
        pytest.raises(Io, match=r"node node-a writes the audit log with another key.*tokens\.key"),
    ):
        AuditLog(other, node="node-b")
    assert "CANARY" not in str(other)
    # A key may be replaced while no node runs.
    AuditLog(other, node="node-b").close()
    assert execute(url, "SELECT count(*) FROM audit_chains WHERE closed IS NULL AND id > 0") == [
        (0,)
    ]


def test_the_key_is_not_in_the_database(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    fill(log, url, "node-a", 2)
    [(dump,)] = execute(
        url,
        "SELECT (SELECT string_agg(c::text, '') FROM audit_chains c)"
        " || (SELECT string_agg(convert_from(line, 'UTF8'), '') FROM audit_rows)",
    )
    assert KEY.hex() not in str(dump)


# ── Dead nodes ───────────────────────────────────────────────────────────────────────────────────


def test_the_chain_of_a_dead_node_is_closed_with_a_row(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    node = add_node(url)
    writer = AuditLog(log.of_node(lambda: node), node="node-a")
    try:
        writer.append(envelope(1))
        writer.flush()
        assert checked(log).writing
        declare_dead(url, node)
        [chain] = checked(log).chains
        assert (chain.state, chain.rows) == ("dead", 3)
        *_, last = rows(log)
        assert isinstance(last.content, RecoveryRow)
        assert (last.content.reason, last.content.by) == ("node_dead", "node-b")
        declare_dead(url, node)  # nothing is left to close
        assert checked(log).rows == 3
    finally:
        writer.close()
    # It was idle since: it has nothing to add, and no error to report.
    assert checked(log).rows == 3
    assert writer.errors == ()


def test_a_node_that_was_taken_for_dead_goes_on_in_a_new_chain(
    place: tuple[PostgresLog, str],
) -> None:
    log, url = place
    nodes = [add_node(url)]
    with AuditLog(log.of_node(lambda: nodes[-1]), node="node-a") as writer:
        before = writer.epoch
        writer.append(envelope(1))
        writer.flush()
        declare_dead(url, nodes[0])
        writer.append(envelope(2))  # it does not know yet, and has no new epoch
        with pytest.raises(Io, match="taken for dead"):
            writer.flush(30)
        assert writer.failing
        nodes.append(add_node(url))
        settle(writer)
        assert (writer.epoch > before, writer.failing) == (True, False)
    assert kinds(log) == [
        *[(before, kind) for kind in ("Start", "AuditEnvelope", "Recovery")],
        *[(writer.epoch, kind) for kind in ("Start", "AuditEnvelope", "Stop")],
    ]
    assert {row.chain == row.content.epoch for row in rows(log)} == {True}
    assert request_ids(log) == ["req-1", "req-2"]
    assert [chain.state for chain in checked(log).chains] == ["dead", "stopped"]


# ── PostgreSQL is gone ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loss", ["stop", "kill"])
def test_rows_wait_while_postgresql_is_gone(
    postgres_server: PostgresServer, place: tuple[PostgresLog, str], loss: str
) -> None:
    log, _ = place
    with AuditLog(log, node="node-a") as writer:
        writer.append(envelope(1))
        writer.flush()
        getattr(postgres_server, loss)()
        writer.append(envelope(2))
        with pytest.raises(Io):
            writer.flush(30)
        assert writer.failing
        [error] = writer.errors
        assert "postgresql:///" in str(error)
        postgres_server.start()
        writer.append(envelope(3))
        settle(writer)
    assert request_ids(log) == ["req-1", "req-2", "req-3"]
    checked(log)


def test_rows_that_could_not_wait_are_counted(
    postgres_server: PostgresServer,
    place: tuple[PostgresLog, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, _ = place
    with AuditLog(log, node="node-a") as writer:
        monkeypatch.setattr("anaphora.audit.writer.MOST_WAITING", 3)
        postgres_server.stop()
        for number in range(3):
            writer.append(envelope(number))
        with pytest.raises(Io, match="no more rows can wait"):
            writer.append(envelope(3))
        postgres_server.start()
        settle(writer)
    assert request_ids(log) == ["req-0", "req-1", "req-2"]
    [lost] = [row.content for row in rows(log) if isinstance(row.content, LostRow)]
    assert lost.rows == 1


@pytest.mark.soak
def test_rows_of_a_commit_whose_answer_was_lost_are_written_once(
    place: tuple[PostgresLog, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the commit, and before its answer; a third time before it."""
    log, _ = place
    append, broken = log_postgres.append_lines, [True, True, False]

    async def breaking(
        connection: Connection, chain: int, *args: object, **kwargs: object
    ) -> object:
        result = await append(connection, chain, *args, **kwargs)  # type: ignore[arg-type]
        if chain and broken:
            if broken.pop():
                await connection.execute("COMMIT; BEGIN")
            raise ConnectionResetError("connection reset by peer")
        return result

    with AuditLog(log, node="node-a") as writer:
        monkeypatch.setattr(log_postgres, "append_lines", breaking)
        for number in range(4):
            writer.append(envelope(number))
            settle(writer)
        assert not broken
    assert request_ids(log) == [f"req-{number}" for number in range(4)]
    checked(log)


def test_rows_that_were_committed_before_the_node_was_taken_for_dead_are_not_repeated(
    place: tuple[PostgresLog, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, url = place
    nodes = [add_node(url)]
    append, broken = log_postgres.append_lines, [True]

    async def breaking(
        connection: Connection, chain: int, *args: object, **kwargs: object
    ) -> object:
        result = await append(connection, chain, *args, **kwargs)  # type: ignore[arg-type]
        if chain and broken:
            broken.clear()
            await connection.execute("COMMIT; BEGIN")
            declare_dead(url, nodes[0])
            raise ConnectionResetError("connection reset by peer")
        return result

    with AuditLog(log.of_node(lambda: nodes[-1]), node="node-a") as writer:
        monkeypatch.setattr(log_postgres, "append_lines", breaking)
        writer.append(envelope(1))
        settle(writer)
        nodes.append(add_node(url))
        writer.append(envelope(2))
        settle(writer)
    assert request_ids(log) == ["req-1", "req-2"]
    assert [chain.state for chain in checked(log).chains] == ["dead", "stopped"]


# ── Anchors ──────────────────────────────────────────────────────────────────────────────────────


def test_an_anchor_names_the_chains_that_have_grown(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    first = fill(log, url, "node-a", 1)
    with AuditLog(log, node="node-b") as writer:
        assert [[mark.chain for mark in one.heads] for one in anchors(url)] == [
            [first],  # started
            [first],  # stopped
            [writer.epoch],
        ]
        writer.append(envelope(1))
        writer.flush()
        [*_, open_chain] = checked(log).chains
        assert (open_chain.anchored, open_chain.last) == (1, 2)
        for expected in (True, False):  # nothing has grown since
            written = in_database(url, lambda one: write_anchor(one, node="node-c", key=KEY))
            assert written is expected
        assert anchors(url)[-1].node == "node-c"
        assert checked(log).chains[-1].anchored == 2


def test_anchors_are_written_by_themselves(
    place: tuple[PostgresLog, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a while, by any node, also where none of its own rows are new."""
    log, _ = place
    monkeypatch.setattr(log_postgres, "ANCHOR_SECONDS", 0.05)
    with AuditLog(log, node="node-a") as writer:
        for number in range(2):
            writer.append(envelope(number))
            writer.flush()
            while checked(log).chains[0].anchored < writer.head.seq:
                pass
    checked(log)


def test_two_nodes_write_no_two_anchors_of_one_minute(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    with AuditLog(log, node="node-a") as writer:
        writer.append(envelope(1))
        writer.flush()
        late = in_database(url, lambda one: write_anchor(one, node="node-b", key=KEY, seconds=60))
        assert not late
        execute(url, "UPDATE audit_rows SET at = at - interval '2 minutes' WHERE chain = 0")
        due = in_database(url, lambda one: write_anchor(one, node="node-b", key=KEY, seconds=60))
        assert due


def test_anchors_of_another_key_are_counted(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    fill(log, url, "node-a", 1)
    verified = checked(log)
    assert (verified.signed_anchors, verified.unsigned_anchors) == (2, 0)
    other = checked(PostgresLog(log.address))
    assert (other.signed_anchors, other.unsigned_anchors) == (0, 2)
    # With a new key, those of the one before are checked by their hashes only, where one says so.
    replaced = PostgresLog(log.address, key=bytes(32))
    AuditLog(replaced, node="node-b").close()
    verified = checked(replaced, key_since=3)
    assert (verified.signed_anchors, verified.unsigned_anchors) == (2, 2)
    with pytest.raises(AnchorMismatch, match="anchor 1: is not signed with the key of this log"):
        verify(replaced)
    with pytest.raises(AnchorMismatch, match="anchor 3: is not signed with the key of this log"):
        verify(log)


# ── Changes by hand ──────────────────────────────────────────────────────────────────────────────

CHANGES: dict[str, tuple[list[str], type[AnaphoraError], str]] = {
    "a row was changed": (
        [
            "UPDATE audit_rows SET line = convert_to(replace(convert_from(line, 'UTF8'),"
            " 'req-1', 'req-7'), 'UTF8') WHERE chain = 1 AND seq = 3"
        ],
        ChainBroken,
        r"row 3 \(chain 1, node-a\): its hash is not that of its content",
    ),
    "a row was deleted": (
        ["DELETE FROM audit_rows WHERE chain = 1 AND seq = 3"],
        ChainBroken,
        r"row 3 \(chain 1, node-a\)",
    ),
    "the end was cut off": (
        ["DELETE FROM audit_rows WHERE chain = 1 AND seq > 3"],
        AnchorMismatch,
        "chain 1, node-a: the log was cut off: it ends with row 3, and the anchor names row 5",
    ),
    "the end was cut off, and the chain says so": (
        [
            "DELETE FROM audit_rows WHERE chain = 1 AND seq > 3",
            "UPDATE audit_chains SET last_seq = 3, last_hash = (SELECT"
            " convert_from(substring(line FROM length(line) - 65 FOR 64), 'UTF8')"
            " FROM audit_rows WHERE chain = 1 AND seq = 3) WHERE id = 1",
        ],
        AnchorMismatch,
        "cut off: it ends with row 3, and the anchor names row 5",
    ),
    "a chain was deleted": (
        ["DELETE FROM audit_rows WHERE chain = 1", "DELETE FROM audit_chains WHERE id = 1"],
        AnchorMismatch,
        "chain 1 is missing: anchor 2 names its row 5",
    ),
    "all rows of a chain were deleted": (
        [
            "DELETE FROM audit_rows WHERE chain = 1",
            "UPDATE audit_chains SET last_seq = 0, last_hash = repeat('0', 64) WHERE id = 1",
        ],
        AnchorMismatch,
        "chain 1, node-a: the log was cut off",
    ),
    "the beginning was deleted": (
        [
            "DELETE FROM audit_rows WHERE chain = 1 AND seq = 1",
            "UPDATE audit_chains SET start_seq = 1, start_hash = repeat('a', 64) WHERE id = 1",
        ],
        ChainBroken,
        "its hash is not that of its content and the row before it",
    ),
    "a row was added": (
        ["INSERT INTO audit_rows SELECT chain, 6, at, line FROM audit_rows WHERE chain = 1"
         " AND seq = 5"],
        ChainBroken,
        r"row 6 \(chain 1, node-a\): expected row 6 and found row 5",
    ),
    "chains were exchanged": (
        [
            "UPDATE audit_rows SET chain = chain + 100 WHERE chain > 0",
            "UPDATE audit_rows SET chain = CASE chain WHEN 101 THEN 2 ELSE 1 END WHERE chain > 0",
            "UPDATE audit_chains a SET last_seq = b.last_seq, last_hash = b.last_hash"
            " FROM audit_chains b WHERE (a.id, b.id) IN ((1, 2), (2, 1))",
        ],
        AnchorMismatch,
        "chain 1, node-a: ",
    ),
    "a chain was inserted": (
        [
            "INSERT INTO audit_rows SELECT 9, seq, at, line FROM audit_rows WHERE chain = 1",
            "INSERT INTO audit_chains (id, name, last_seq, last_hash, closed)"
            " SELECT 9, 'forged', last_seq, last_hash, now() FROM audit_chains WHERE id = 1",
        ],
        AnchorMismatch,
        r"chain 9 \(forged\) is named by no anchor",
    ),
    "an anchor was changed": (
        [
            "UPDATE audit_rows SET line = convert_to(replace(convert_from(line, 'UTF8'),"
            " 'node-a', 'node-x'), 'UTF8') WHERE chain = 0 AND seq = 1"
        ],
        ChainBroken,
        r"row 1 \(anchors\): its hash is not that of its content",
    ),
    "an anchor was deleted": (
        ["DELETE FROM audit_rows WHERE chain = 0 AND seq = 2"],
        ChainBroken,
        r"row 2 \(anchors\)",
    ),
    "the last anchor was deleted": (
        ["DELETE FROM audit_rows WHERE chain = 0 AND seq = 4"],
        ChainBroken,
        r"row 3 \(anchors\): the chain ends with this row, and row 4 is recorded",
    ),
    "the chain of the anchors was deleted": (
        ["DELETE FROM audit_chains WHERE id = 0"],
        AnchorMismatch,
        "the chain of the anchors is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_database_is_found(place: tuple[PostgresLog, str], change: str) -> None:
    log, url = place
    for name, count in (("node-a", 3), ("node-b", 2)):
        fill(log, url, name, count)
    assert checked(log).rows == 9
    statements, error, message = CHANGES[change]
    for statement in statements:
        execute(url, statement)
    with pytest.raises(error, match=message):
        verify(log)


def rewrite(connection_url: str, chain: int, old: bytes, new: bytes) -> None:
    """Writes a chain anew with right hashes, as who can write the database and knows how can."""
    from anaphora.audit.chain import ChainHead, seal

    head = ChainHead()
    for seq, line in execute(
        connection_url, "SELECT seq, line FROM audit_rows WHERE chain = $1 ORDER BY seq", chain
    ):
        assert isinstance(line, bytes)
        fresh, head = seal(head, decode(line.replace(old, new)).content)
        sql = "UPDATE audit_rows SET line = $3 WHERE chain = $1 AND seq = $2"
        execute(connection_url, sql, chain, seq, fresh)
    sql = "UPDATE audit_chains SET last_hash = $2 WHERE id = $1"
    execute(connection_url, sql, chain, head.hash)


def test_a_chain_that_was_written_anew_is_found_by_the_anchors(
    place: tuple[PostgresLog, str],
) -> None:
    log, url = place
    chain = fill(log, url, "node-a", 3)
    rewrite(url, chain, b"req-1", b"req-7")
    with pytest.raises(AnchorMismatch, match="row 5 is not the one that the anchor names"):
        verify(log)


def test_anchors_that_were_written_anew_are_found_by_their_signature(
    place: tuple[PostgresLog, str],
) -> None:
    """Who can write the database does not have the key of the nodes."""
    log, url = place
    chain = fill(log, url, "node-a", 3)
    before = [chain_.hash for chain_ in checked(log).chains]
    rewrite(url, chain, b"req-1", b"req-7")
    [(after,)] = execute(url, "SELECT last_hash FROM audit_chains WHERE id = $1", chain)
    rewrite(url, 0, before[0].encode(), str(after).encode())
    assert checked(PostgresLog(log.address)).unsigned_anchors == 2, "without the key it is right"
    with pytest.raises(AnchorMismatch, match=r"anchors: anchor 2: its signature"):
        verify(log)


def test_an_anchor_elsewhere_finds_a_log_that_was_cut_off_everywhere(
    place: tuple[PostgresLog, str], tmp_path: Path
) -> None:
    log, url = place
    anchor = tmp_path / "anchor.json"
    fill(log, url, "node-a", 1)
    with AuditLog(log, node="node-b") as writer:
        execute(url, "CREATE TABLE kept AS SELECT * FROM audit_chains")
        writer.append(envelope(1))
        writer.flush()
        update_anchor(anchor, checked(log))
        assert checked(log, anchor).anchored == 3
        writer.append(envelope(2))
        writer.flush()
        checked(log, anchor)
        # The database is as it was before the call: rows and anchors agree with each other.
        execute(url, "DELETE FROM audit_rows r USING kept k WHERE chain = id AND seq > k.last_seq")
        execute(
            url,
            "UPDATE audit_chains c SET (last_seq, last_hash, anchored) ="
            " (SELECT last_seq, last_hash, anchored FROM kept k WHERE k.id = c.id)",
        )
        checked(log)
        with pytest.raises(AnchorMismatch, match="chain 2, node-b: the log was cut off"):
            verify(log, anchor=anchor)
        assert isinstance(writer._writer, LogWriter)
        writer._writer.store.close()


# ── Pruning ──────────────────────────────────────────────────────────────────────────────────────


def test_old_rows_are_pruned_while_nodes_write(
    place: tuple[PostgresLog, str], tmp_path: Path
) -> None:
    log, url = place
    anchor = tmp_path / "anchor.json"
    old = fill(log, url, "node-a", 3)
    with AuditLog(log, node="node-b") as writer:
        writer.append(envelope(4))
        writer.flush()
        execute(url, "UPDATE audit_rows SET at = at - interval '40 days'")
        writer.append(envelope(5))
        writer.flush()
        update_anchor(anchor, checked(log))
        assert prune(log, keep_days=50).chains == ()
        result = prune(log, keep_days=30, anchor=anchor)
        assert [(mark.chain, mark.seq) for mark in result.chains or ()] == [
            (old, 5),
            (writer.epoch, 2),
        ]
        assert request_ids(log) == ["req-5"]
        writer.append(envelope(6))
        writer.flush()
        verified = checked(log, anchor)
        assert [(one.first, one.rows) for one in verified.chains] == [(6, 0), (3, 2)]
    assert request_ids(log) == ["req-5", "req-6"]
    assert checked(log, anchor).rows == 3
    # Rows that are deleted by hand are not taken for pruned ones.
    execute(url, "DELETE FROM audit_rows WHERE chain = $1 AND seq = 3", writer.epoch)
    with pytest.raises(ChainBroken):
        verify(log)


def test_deleting_the_beginning_by_hand_is_no_pruning(place: tuple[PostgresLog, str]) -> None:
    log, url = place
    chain = fill(log, url, "node-a", 3)
    [(line,)] = execute(url, "SELECT line FROM audit_rows WHERE chain = $1 AND seq = 2", chain)
    assert isinstance(line, bytes)
    execute(url, "DELETE FROM audit_rows WHERE chain = $1 AND seq <= 2", chain)
    sql = "UPDATE audit_chains SET start_seq = 2, start_hash = $2 WHERE id = $1"
    execute(url, sql, chain, decode(line).hash)
    with pytest.raises(
        ChainBroken, match="rows 1 to 2 are missing, and no row says that they were"
    ):
        verify(log)


@pytest.mark.parametrize("where", ["anchors", "own chain"])
def test_a_row_of_pruning_that_was_made_by_hand_is_found(
    place: tuple[PostgresLog, str], where: str
) -> None:
    """Who can write the database knows how rows are hashed, and has no key."""
    log, url = place
    chain = fill(log, url, "node-a", 3)
    [(line,)] = execute(url, "SELECT line FROM audit_rows WHERE chain = $1 AND seq = 2", chain)
    assert isinstance(line, bytes)
    digest = decode(line).hash
    execute(url, "DELETE FROM audit_rows WHERE chain = $1 AND seq <= 2", chain)
    sql = "UPDATE audit_chains SET start_seq = 2, start_hash = $2, closed = NULL WHERE id = $1"
    execute(url, sql, chain, digest)
    forged: AuditRow = PrunedRow(at=1.0, keep_days=1, boundaries=(Boundary(2, digest),))
    if where == "anchors":
        forged = PrunedChainsRow(at=1.0, keep_days=1, through=(ChainMark(chain, 2, digest),))
    target = 0 if where == "anchors" else chain
    in_database(url, lambda one: append_rows(one, target, [forged]))
    expected = AnchorMismatch if where == "anchors" else ChainBroken
    with pytest.raises(expected, match=r"not signed|no row says that they were pruned"):
        verify(log)
    # Also after a node has written an anchor over it.
    in_database(url, lambda one: write_anchor(one, node="node-b", key=KEY))
    with pytest.raises(expected, match=r"not signed|no row says that they were pruned"):
        verify(log)


def test_anchors_written_anew_under_an_invented_key_are_found(
    place: tuple[PostgresLog, str],
) -> None:
    log, url = place
    chain = fill(log, url, "node-a", 3)
    before = [chain_.hash for chain_ in checked(log).chains]
    rewrite(url, chain, b"req-1", b"req-7")
    [(after,)] = execute(url, "SELECT last_hash FROM audit_chains WHERE id = $1", chain)
    rewrite(url, 0, before[0].encode(), str(after).encode())
    rewrite(url, 0, key_id(KEY).encode(), b"0" * len(key_id(KEY)))
    with pytest.raises(AnchorMismatch, match="anchor 1: is not signed with the key of this log"):
        verify(log)


# ── Moving ───────────────────────────────────────────────────────────────────────────────────────


def test_a_log_of_files_is_moved_as_a_chain(
    place: tuple[PostgresLog, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, url = place
    monkeypatch.setattr("anaphora.audit.moving._COPIED", 4)
    source = written(tmp_path / "audit", 10, segment_bytes=2_000)
    written(source, 3)
    before = verify(source)
    progress: list[int] = []
    copied = in_database(url, lambda one: copy_log(one, source, key=KEY, progress=progress.append))
    assert (copied.rows, copied.head.seq, copied.head.hash) == (
        before.rows,
        before.last,
        before.hash,
    )
    assert progress
    assert [row.line for row in rows(log)] == [row.line for row in rows(source)]
    fill(log, url, "node-a", 1)
    [moved, own] = checked(log).chains
    assert (moved.state, moved.hash, own.state) == ("moved", before.hash, "stopped")
    # Its rows are as old as they were.
    execute(url, "UPDATE audit_rows SET at = at - interval '2 days' WHERE chain = 2")
    assert [mark.chain for mark in prune(log, keep_days=1).chains or ()] == [2]
    execute(url, "DELETE FROM audit_rows WHERE chain = $1 AND seq = 5", copied.chain)
    with pytest.raises(ChainBroken, match=f"row 5 .chain {copied.chain}, audit"):
        verify(log)


def test_a_log_that_was_pruned_or_killed_is_moved(
    place: tuple[PostgresLog, str], tmp_path: Path
) -> None:
    log, url = place
    source = written(tmp_path / "audit", 10, segment_bytes=2_000)
    prune(source, keep_days=1e-9)
    last = sorted(source.iterdir())[-1]
    last.write_bytes(last.read_bytes() + b'{"schema_version":1,"seq":')
    copied = in_database(url, lambda one: copy_log(one, source, key=KEY))
    assert checked(log).chains[0].first > 1
    assert copied.rows == len([*rows(log)])


def test_a_log_that_was_changed_or_is_written_is_not_moved(
    place: tuple[PostgresLog, str], tmp_path: Path
) -> None:
    log, url = place
    source = written(tmp_path / "audit", 3)
    with (
        AuditLog(source),
        pytest.raises(Io, match="a process is writing this log; stop it first"),
    ):
        in_database(url, lambda one: copy_log(one, source, key=KEY))
    [segment] = source.iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"req-1", b"req-7"))
    with pytest.raises(ChainBroken):
        in_database(url, lambda one: copy_log(one, source, key=KEY))
    assert checked(log).chains == ()


# ── Killed writers ───────────────────────────────────────────────────────────────────────────────


def test_killed_writers_lose_no_row_that_was_acknowledged(place: tuple[PostgresLog, str]) -> None:
    """And no row is there in part: PostgreSQL rolls back what was under way."""
    log, url = place
    kill_chain_writers(log, url, 2)
    assert [chain.state for chain in checked(log).chains] == ["dead", "dead"]
