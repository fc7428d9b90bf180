"""Sums over all chains of an audit log in PostgreSQL, as each node fills them for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit_logs import envelope
from support.postgres_logs import execute, fill_chains, postgres_log
from support.servers import PostgresServer
from support.waiting import wait_until

from anaphora.audit import AuditLog, prune
from anaphora.audit.log_postgres import PostgresLog
from anaphora.dashboard.past_calls import log_tail
from anaphora.dashboard.past_calls.source import LogCalls
from anaphora.dashboard.values import CallQuery, View
from anaphora.errors import InvalidRequest, Io

NOW = 1_800_000_000.0
ALL = View(since=NOW - 1_000, until=NOW + 1_000_000, range="custom")


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[tuple[PostgresLog, str]]:
    with postgres_log(postgres_server) as found:
        yield found


class Node:
    """The dashboard of one node."""

    def __init__(self, folder: Path, log: PostgresLog) -> None:
        self.source = LogCalls(folder / "dashboard.db", log, clock=lambda: NOW)

    @property
    def ids(self) -> list[str | None]:
        """The newest first."""
        self.source.fill()
        page = self.source.calls(CallQuery(view=ALL, limit=1_000))
        return [shown.call.request_id for shown in page.calls]

    def pages(self, other: Node) -> list[str | None]:
        """All calls, with each page from the other node in turn."""
        found: list[str | None] = []
        before, nodes = None, [self, other]
        while True:
            page = nodes[0].source.calls(CallQuery(view=ALL, before=before, limit=7))
            found += [shown.call.request_id for shown in page.calls]
            before = page.before
            nodes.reverse()
            if before is None:
                return found


@pytest.fixture
def nodes(place: tuple[PostgresLog, str], tmp_path: Path) -> Iterator[list[Node]]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(Node(tmp_path / name, place[0]))
    yield made
    for node in made:
        node.source.close()


def names(*numbers: int) -> list[str]:
    return [f"req-{number}" for number in sorted(numbers, reverse=True)]


def test_each_node_sums_the_calls_of_all(place: tuple[PostgresLog, str], nodes: list[Node]) -> None:
    log, _ = place
    first, second = nodes
    with AuditLog(log, node="a") as a, AuditLog(log, node="b") as b:
        for number in range(6):
            writer = (a, b)[number % 2]
            writer.append(envelope(number))
            writer.flush()
            assert first.ids == names(*range(number + 1))
    assert second.ids == names(*range(6)), "one that was not there meanwhile"
    with AuditLog(log, node="a") as a:  # a new epoch
        a.append(envelope(6))
    assert (first.ids, second.ids) == (names(*range(7)), names(*range(7)))
    assert first.source.overview(ALL).total == second.source.overview(ALL).total


def test_a_page_goes_on_at_another_node(place: tuple[PostgresLog, str], nodes: list[Node]) -> None:
    """Behind a balancer the next page comes from any node, which has read the chains in another
    order."""
    log, _ = place
    first, second = nodes
    with AuditLog(log, node="a") as a, AuditLog(log, node="b") as b:
        for number in range(0, 40, 2):
            a.append(envelope(number))
        a.flush()
        assert len(first.ids) == 20
        for number in range(1, 40, 2):
            b.append(envelope(number))
    assert (len(first.ids), len(second.ids)) == (40, 40)
    assert first.pages(second) == names(*range(40))
    with pytest.raises(InvalidRequest, match="is not the id of a call"):
        first.source.calls(CallQuery(view=ALL, before="1-2", limit=7))
    gone = f"{NOW + 20}-77-1"
    page = first.source.calls(CallQuery(view=ALL, before=gone, limit=7))
    assert page.calls[0].call.request_id == "req-20"


def test_a_conversation_over_several_nodes_is_in_order(
    place: tuple[PostgresLog, str], nodes: list[Node]
) -> None:
    log, _ = place
    with ExitStack() as stack:
        logs = [stack.enter_context(AuditLog(log, node=name)) for name in "abc"]
        for turn in range(9):
            call = envelope(turn, conversation="c1", turn=turn + 1)
            logs[(2 * turn) % 3].append(call)
    for node in nodes:
        node.source.fill()
        shown = node.source.conversation("c1")
        assert shown is not None
        assert [call.call.turn for call in shown.calls] == list(range(1, 10))
        assert shown.row.sums.calls == 9


def test_pruned_calls_leave_the_sums(place: tuple[PostgresLog, str], nodes: list[Node]) -> None:
    log, url = place
    fill_chains(log, [envelope(number) for number in range(6)], nodes=2)
    assert nodes[0].ids == names(*range(6))
    execute(url, "UPDATE audit_rows SET at = at - interval '40 days' WHERE chain = 1")
    assert prune(log, keep_days=30).chains
    assert nodes[0].ids == names(1, 3, 5)
    fill_chains(log, [envelope(7)], nodes=1)
    assert nodes[0].ids == names(1, 3, 5, 7)


def test_another_database_is_read_anew(
    postgres_server: PostgresServer, place: tuple[PostgresLog, str], tmp_path: Path
) -> None:
    """Also one that was restored from a backup, under the same address."""
    log, url = place
    fill_chains(log, [envelope(number) for number in range(6)], nodes=2)
    node = Node(tmp_path, log)
    assert len(node.ids) == 6
    execute(url, "TRUNCATE audit_rows")
    execute(url, "DELETE FROM audit_chains WHERE id > 0")
    execute(url, "UPDATE audit_chains SET last_seq = 0, last_hash = repeat('0', 64)")
    fill_chains(log, [envelope(50)], nodes=1)
    assert node.ids == names(50)
    node.source.close()
    with postgres_log(postgres_server) as (other, _):
        fill_chains(other, [envelope(60)], nodes=1)
        node = Node(tmp_path, other)
        assert node.ids == names(60)
        node.source.close()


def test_many_chains_are_read_a_part_at_a_time(
    place: tuple[PostgresLog, str], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are closed, old and complete are not looked at again."""
    log, url = place
    monkeypatch.setattr(log_tail, "_MOST_CHAINS", 3)
    for number in range(8):
        fill_chains(log, [envelope(10 * number + each) for each in range(5)], nodes=1)
    expected = names(*(10 * number + each for number in range(8) for each in range(5)))
    assert nodes[0].ids == expected
    position = nodes[0].source.state().position
    assert (position.done, len(position.chains)) == (0, 8)
    execute(url, "UPDATE audit_chains SET started = started - interval '2 hours'")
    with AuditLog(log, node="a") as open_log:
        open_log.append(envelope(100))
        open_log.flush()
        assert nodes[0].ids == ["req-100", *expected]
        position = nodes[0].source.state().position
        assert (position.done, position.chains) == (8, {open_log.epoch: 2})
        open_log.append(envelope(101))
        open_log.flush()
        assert nodes[0].ids == ["req-101", "req-100", *expected]
    assert nodes[1].ids == ["req-101", "req-100", *expected]


def test_a_chain_that_becomes_visible_late_is_read(
    place: tuple[PostgresLog, str], nodes: list[Node]
) -> None:
    """Its number is lower than that of a chain that was read before."""
    log, url = place
    fill_chains(log, [envelope(1)], nodes=1)
    fill_chains(log, [envelope(2)], nodes=1)
    execute(url, "CREATE TABLE late AS SELECT * FROM audit_chains WHERE id = 1")
    execute(url, "DELETE FROM audit_chains WHERE id = 1")
    assert nodes[0].ids == names(2)
    execute(url, "INSERT INTO audit_chains SELECT * FROM late")
    assert nodes[0].ids == names(1, 2)


def test_a_newer_row_of_one_node_holds_up_its_own_chain_only(
    place: tuple[PostgresLog, str], nodes: list[Node]
) -> None:
    log, url = place
    with AuditLog(log, node="a") as old, AuditLog(log, node="b") as new:
        for number, writer in enumerate((old, new, old)):
            writer.append(envelope(number))
            writer.flush()
        execute(
            url,
            "UPDATE audit_rows SET line = convert_to(replace(convert_from(line, 'UTF8'),"
            " '\"schema_version\":1', '\"schema_version\":2'), 'UTF8') WHERE chain = $1",
            new.epoch,
        )
        assert nodes[0].ids == names(0, 2)
        assert "schema_version 2 is newer" in nodes[0].source.problem
        old.append(envelope(3))
        old.flush()
        assert nodes[0].ids == names(0, 2, 3)


def test_pages_go_on_when_postgresql_is_back(
    postgres_server: PostgresServer, place: tuple[PostgresLog, str], nodes: list[Node]
) -> None:
    log, _ = place
    fill_chains(log, [envelope(1)], nodes=1)
    source = nodes[0].source
    source.start()
    wait_until(lambda: source.overview(ALL).total.calls == 1, "the call is summed")
    postgres_server.stop()
    wait_until(lambda: (source.version(), source.problem)[1], "the problem is reported")
    assert source.overview(ALL).total.calls == 1, "the sums are in a file of this node"
    with pytest.raises(Io):
        source.calls(CallQuery(view=ALL, limit=7))
    postgres_server.start()
    fill_chains(log, [envelope(2)], nodes=1)
    wait_until(lambda: source.overview(ALL).total.calls == 2, "the next call is summed")
    assert source.problem == ""


@pytest.mark.soak
@settings(max_examples=6, deadline=None)
@given(steps=st.lists(st.sampled_from(("a", "b", "c", "fill", "restart")), max_size=25))
def test_no_call_is_missed_or_counted_twice(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Whatever the order in which nodes write, stop, start again, and sums are filled."""
    with postgres_log(postgres_server) as (log, _), ExitStack() as stack:
        node = Node(tmp_path_factory.mktemp("dashboard"), log)
        stack.callback(node.source.close)
        logs: dict[str, AuditLog] = {}
        count = 0
        for step in steps:
            if step == "fill":
                node.source.fill()
            elif step == "restart":
                for writer in logs.values():
                    writer.close()
                logs = {}
            else:
                if step not in logs:
                    logs[step] = stack.enter_context(AuditLog(log, node=step))
                logs[step].append(envelope(count))
                logs[step].flush()
                count += 1
        assert node.ids == names(*range(count))
        assert node.source.overview(ALL).total.calls == count
