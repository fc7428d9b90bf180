"""The nodes of a store, their last reports, and which are drained."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.redaction import shown_name
from anaphora.yaml_values import nearest

if TYPE_CHECKING:
    from anaphora.postgres.lane import Lane

#: Seconds without a report after which a node is shown as silent.
_SILENT = 5.0

_NODES = """
SELECT nodes.id, nodes.name, nodes.version, nodes.state,
    extract(epoch FROM nodes.started)::float8 AS started,
    extract(epoch FROM nodes.ended)::float8 AS ended,
    extract(epoch FROM clock_timestamp() - beats.at)::float8 AS lag,
    beats.report::text AS report,
    EXISTS (SELECT FROM drains WHERE node = nodes.name) AS drained
FROM nodes LEFT JOIN beats ON beats.node = nodes.id
WHERE nodes.state = 'alive' OR nodes.ended > clock_timestamp() - interval '1 day'
ORDER BY nodes.name, nodes.id
"""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's report, sent with every heartbeat. Fields of other versions are ignored."""

    address: str = ""
    status: str = ""
    """Address of its status port; empty if it has none."""
    calls: int = 0
    """Running calls."""
    calls_per_minute: float = 0.0
    waiting: int = 0
    """Settlements that are not written yet."""
    generation: int = 0
    """Generation of the grants that it serves."""
    draining: bool = False
    refuses_calls: bool = False
    """Its port for apps refuses new connections."""
    problems: tuple[str, ...] = ()


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a node. Its id is the fencing token of its writes."""

    id: int
    name: str
    version: str
    state: str
    """alive, draining or silent; ended or dead: it stopped, or others took over its holds."""
    started: float
    ended: float | None
    lag: float | None
    """Seconds since its last report."""
    report: NodeReport


async def nodes(lane: Lane) -> list[NodeRow]:
    """Running nodes, and those that ended within a day."""
    return [_node(row) for row in await lane.fetch(_NODES)]


async def running_nodes(lane: Lane) -> int:
    count: int = await lane.fetchval("SELECT count(DISTINCT name) FROM nodes WHERE state = 'alive'")
    return count


async def all_names(lane: Lane) -> set[str]:
    """The names of all nodes that have ever run on the store."""
    return {row["name"] for row in await lane.fetch("SELECT DISTINCT name FROM nodes")}


def _node(row: Any) -> NodeRow:
    state, lag = row["state"], row["lag"]
    if state == "alive" and (lag is None or lag > _SILENT):
        state = "silent"
    elif state == "alive" and row["drained"]:
        state = "draining"
    report = NodeReport()
    if row["report"]:
        with contextlib.suppress(msgspec.ValidationError):  # of another version
            report = msgspec.json.decode(row["report"], type=NodeReport)
    return NodeRow(
        id=row["id"],
        name=row["name"],
        version=row["version"],
        state=state,
        started=row["started"],
        ended=row["ended"],
        lag=lag,
        report=report,
    )


async def set_drained(lane: Lane, name: str, drained: bool) -> bool:
    """Drains a node or undoes that. Returns whether it was a change. Raises `InvalidRequest` if no
    such node runs."""
    if not drained:
        removed = await lane.fetchval("DELETE FROM drains WHERE node = $1 RETURNING node", name)
        if removed is None:
            await _check_name(lane, name)
        return removed is not None
    await _check_name(lane, name)
    added = await lane.fetchval(
        "INSERT INTO drains (node) VALUES ($1) ON CONFLICT DO NOTHING RETURNING node", name
    )
    return added is not None


async def _check_name(lane: Lane, name: str) -> None:
    rows = await lane.fetch("SELECT DISTINCT name FROM nodes WHERE state = 'alive' ORDER BY name")
    names = [row["name"] for row in rows]
    if name not in names:
        near = nearest(name, names)
        advice = f"did you mean {near}?" if near else f"there are: {', '.join(names) or 'none'}"
        raise InvalidRequest(f"no node {shown_name(name)} runs; {advice}", path="node")


async def drained_for(lane: Lane, name: str) -> float | None:
    """Seconds since the drain by PostgreSQL's clock, since clocks of nodes differ. None: not
    drained."""
    found: float | None = await lane.fetchval(
        "SELECT max(extract(epoch FROM clock_timestamp() - since))::float8 FROM drains"
        " WHERE node = $1",
        name,
    )
    return found
