"""`anaphora nodes`"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anaphora.errors import InvalidRequest
from anaphora.wording import counted

from .common import CommandGroup
from .daemon_connection import call_admin, home_option, json_option, open_shared_home, shown_time
from .terminal import Line, print_report, table

if TYPE_CHECKING:
    from anaphora.daemon.home import Home

#: States of nodes that run.
_RUNNING = ("alive", "draining", "silent")
#: Seconds between two checks of a node that is being drained.
_INTERVAL = 0.5


@click.group(cls=CommandGroup, invoke_without_command=True)
@home_option
@json_option
@click.pass_context
def command(ctx: click.Context, home: Path, as_json: bool) -> None:
    """List the nodes of a daemon on several machines, and drain one.

    For each node: its version and address, the calls that run and those of the last minute, the
    seconds since its last report, the settlements that wait for PostgreSQL, and the generation of
    the grants that it serves. A node that stops reporting is declared dead, and the others charge
    its open calls. --json also has the starts of nodes that ended within a day.
    """
    if ctx.invoked_subcommand is not None:
        for one in ctx.command.params:
            if ctx.get_parameter_source(one.name or "") is click.core.ParameterSource.COMMANDLINE:
                ctx.fail(f"write {one.opts[0]} after {ctx.invoked_subcommand}")
        return
    result = call_admin(open_shared_home(home), "admin.nodes.list", {})
    print_report(result, _lines(result), as_json=as_json)


def _lines(result: dict[str, Any]) -> Iterator[Line]:
    yield f"{result['store']}, generation {result['generation']} of the grants"
    if not result["nodes"]:
        yield "no node runs"
        return
    starts = sorted(
        result["nodes"], key=lambda one: (one["name"], one["state"] in _RUNNING, one["id"])
    )
    nodes = {one["name"]: one for one in starts}.values()  # of each, one that runs, or its last
    figures = ("calls", "a minute", "lag", "waiting", "grants")
    rows = table("node", "state", "version", "address", *figures, "started", right=figures)
    for one in nodes:
        report, runs = one["report"], one["state"] in _RUNNING
        cells = [""] * len(figures)
        if runs:
            cells = [
                f"{report['calls']:,}",
                f"{report['calls_per_minute']:,.0f}",
                "" if one["lag"] is None else f"{max(one['lag'], 0):.1f} s",
                f"{report['waiting']:,}",
                str(report["generation"] or ""),
            ]
        rows.add_row(
            one["name"], one["state"], one["version"], report["address"], *cells,
            shown_time(one["started"]),
            style={"alive": "", "draining": "yellow", "silent": "red"}.get(one["state"], "dim"),
        )  # fmt: skip
    yield rows
    for one in nodes:
        if one["state"] in _RUNNING:
            yield from ((f"{one['name']}: {each}", "yellow") for each in one["report"]["problems"])


@command.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Put it back into service.")
@click.option("--wait", is_flag=True, help="Wait until its running calls have ended.")
@home_option
@json_option
def drain(node: str, undo: bool, wait: bool, home: Path, as_json: bool) -> None:
    """Take NODE out of service: its /readyz answers 503, and it finishes its calls.

    For `drain_delay` seconds (5) it still accepts calls, so that a load balancer that polls /readyz
    loses none. Then its port for apps refuses new connections, and balancers use another node. Its
    /healthz, /readyz and /metrics stay at its `status_port` and its Unix socket. It stays drained
    until --undo, even after a restart.
    """
    if undo and wait:
        raise click.UsageError("--undo or --wait, not both")
    opened = open_shared_home(home)
    result = call_admin(opened, "admin.nodes.drain", {"node": node, "undo": undo})
    if wait:
        result["calls"] = _wait(opened, node, quiet=as_json)
    text = f"{node} is drained" if not undo else f"{node} is in service again"
    if not result["changed"]:
        text = f"{node} was drained already" if not undo else f"{node} was in service already"
    if wait:
        text += "; its calls have ended"
    print_report(result, [text], as_json=as_json)


def _wait(home: Home, node: str, *, quiet: bool) -> int:
    """Waits until the node accepts no calls and none is running."""
    shown = -1
    while True:
        rows = call_admin(home, "admin.nodes.list", {})["nodes"]
        running = {one["name"]: one for one in rows if one["state"] in _RUNNING}
        found = [running[node]] if node in running else []
        if any(one["state"] == "alive" for one in found):
            raise InvalidRequest(f"{node} was put back into service meanwhile")
        calls = sum(one["report"]["calls"] for one in found)
        # None is left if it was stopped meanwhile.
        if not calls and all(one["report"]["refuses_calls"] for one in found):
            return 0
        if calls != shown and not quiet:
            shown = calls
            click.echo(f"{node}: {counted(shown, 'call')} running", err=True)
        time.sleep(_INTERVAL)
