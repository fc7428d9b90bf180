"""`anaphora grants` and `anaphora nodes`, which share the grants."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anaphora import wire
from anaphora.errors import InvalidRequest
from anaphora.wording import counted, visible

from .common import (
    FOUND,
    USAGE,
    CommandGroup,
    print_json,
    read_bytes,
    read_text,
    report_problems,
    stop,
)
from .daemon_connection import (
    call_admin,
    home_option,
    json_option,
    open_home,
    open_shared_home,
    shown_time,
)
from .parameters import WireName
from .terminal import Line, print_report, table

if TYPE_CHECKING:
    from anaphora.daemon.home import Home

#: Width of the texts before their source, if they are not longer.
_TEXT = 42
_OF_PROVIDER = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "concurrency": "calls at a time",
}
#: States of nodes that run.
_RUNNING = ("alive", "draining", "silent")
#: Seconds between two checks of a node that is being drained.
_INTERVAL = 0.5
_FILE = click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False)


@click.group(cls=CommandGroup)
def command() -> None:
    """Explain what apps may do, and apply grants to several nodes.

    A single node takes its grants from extensions.yaml. Several nodes serve the latest generation
    of the grants in PostgreSQL and ignore their files; `anaphora grants apply` adds a generation.
    """


@command.command()
@click.argument("app")
@home_option
@json_option
def check(app: str, home: Path, as_json: bool) -> None:
    """Explain the permissions of APP, its spend, and missing settings.

    Each line ends with its source: file and line, the group, a default, or a limit of the daemon or
    a provider.

    Exit code 1 when the app can make no calls, 2 when a file is invalid: the message names the
    line, and a running daemon keeps its previous settings.
    """
    result = call_admin(open_home(home), "admin.grants.check", {"app": app})
    print_report(result, _lines(result), as_json=as_json)
    report_problems(f"warning: {each}" for each in result["warnings"])
    if result["problems"]:
        report_problems(result["problems"])
        stop(USAGE)
    if not result["may_call"]:
        stop(FOUND)


@command.command()
@click.argument("file", type=_FILE)
@home_option
@json_option
def apply(file: Path, home: Path, as_json: bool) -> None:
    """Apply the grants of FILE to all nodes, within a second.

    FILE is written as extensions.yaml (- reads standard input). It is checked with the llm.yaml of
    this home and becomes the next generation unless it equals the latest. Running calls are not
    interrupted.
    """
    name = "standard input" if str(file) == "-" else str(file)
    params = {"text": read_text(file), "file": name, "by": f"{getpass.getuser()}@{_host()}"}
    result = call_admin(open_shared_home(home), "admin.grants.apply", params)
    number, apps = result["generation"], counted(len(result["apps"]), "app")
    text = f"generation {number} is in force: {apps}"
    if not result["new"]:
        text = f"generation {number} holds the same grants already: {apps}"
    print_report(result, [text], as_json=as_json)
    report_problems(f"warning: {each}" for each in result["warnings"])


@command.command()
@click.argument("generation", type=click.IntRange(min=1), required=False)
@home_option
@json_option
def show(generation: int | None, home: Path, as_json: bool) -> None:
    """Print the current grants of all nodes, or an earlier GENERATION."""
    params = {} if generation is None else {"generation": generation}
    result = call_admin(open_shared_home(home), "admin.grants.show", params)
    if as_json:
        print_json(result)
    else:
        text = visible(result["text"], keep="\n\t")
        click.echo(text, nl=not text.endswith("\n"))


def _host() -> str:
    from anaphora.daemon.home.config import DaemonConfig

    return DaemonConfig().node_name


@command.command()
@click.argument("file", type=_FILE)
@click.option(
    "--from",
    "origin",
    type=WireName(),
    help="Wire of the request; detected by default.",
)
def fingerprint(file: Path, origin: str | None) -> None:
    """Print the fingerprint of all instructions in a request.

    FILE holds the JSON body of a request (- reads standard input), in the format that the app
    sends. A grant with this value as `approved_prompt` refuses any other tools, system text, output
    schema or unknown field; the content of user, assistant and tool messages is not checked.
    """
    from anaphora.daemon.access.approved_prompts import prompt_fingerprint
    from anaphora.wire.permissions.content import read_content
    from anaphora.wire.permissions.fields import read_facts
    from anaphora.wire.reading import decode_members
    from anaphora.wire.strict_json import decode_strict

    body = read_bytes(file)
    detected = wire.detect_wire(body) if origin is None else wire.DetectedWire(origin)
    if detected.guess:
        report_problems([detected.guess])
    decode_strict(body)
    members = decode_members(body)
    base = wire.base_of(detected.name)
    content = read_content(base, wire.get(base).parse(body))
    facts = read_facts(detected.name, members, content)
    value = prompt_fingerprint(facts.wire, members, {tool.value for tool in facts.tools})
    click.echo(value)


def _lines(result: dict[str, Any]) -> Iterator[Line]:
    verdict = "may make calls" if result["may_call"] else "may not make calls"
    yield f"{result['app']} {verdict}", "bold"
    if not result["granted"]:
        return
    sources = result["sources"]
    fields = [(name, text, sources.get(key, key)) for name, text, key in _fields(result)]
    width = max(len(name) for name, _, _ in fields)
    for name, text, source in fields:
        yield f"  {name:{width}}  {text:{_TEXT}}  {source}"


def _fields(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, text, and the value whose source it is of, or the source itself."""
    yield "capabilities", _listed(result["capabilities"]), "capabilities"
    yield "tokens", counted(result["tokens"], "valid token"), "the store"
    if result["uids"]:
        yield "users", f"{', '.join(map(str, result['uids']))} (on the Unix socket)", "uids"
    for one in result["providers"]:
        kind = "route" if one["route"] else "provider"
        yield kind, f"{one['id']}: {_models(one)}", "providers"
    if not result["providers"]:
        yield "providers", "none", "providers"
    for name in ("models", "tools"):
        yield name, _listed(result[name]), name
    longest = "the model's longest"
    if result["max_tokens"] is not None:
        longest = f"up to {result['max_tokens']:,} tokens"
        if result["over_max_tokens"] == "clamp":
            longest += " (higher limits are lowered)"
    yield "answer", longest, "max_tokens"
    yield "answers", f"{result['n']} at a time", "n"
    yield "streams", f"{result['max_streams']:,} running calls", "max_streams"
    for noun in ("requests", "tokens"):
        key = f"{noun}_per_minute"
        yield "rate", f"{_number(result[key], noun)} a minute", key
    for one in result["provider_limits"]:
        limit = _OF_PROVIDER[one["limit"]]
        yield "rate", f"{one['provider']}: {one['most']:,} {limit} for all apps", one["source"]
    yield "request", f"up to {result['most_body_bytes']:,} bytes", "max_body_bytes"
    yield from _dollars(result)
    yield "allowed", _listed(result["allow"]), "allow"
    for name in ("betas", "fields"):
        if result[name]:
            yield name, _listed(result[name]), name
    if result["approved_prompt"] is not None:
        yield "prompt", f"only {result['approved_prompt']}", "approved_prompt"
    markers = "placed by the planner" if result["place_markers"] else "the app's own"
    yield "markers", markers, "place_markers"
    yield "cache", "shared with other apps" if result["share_cache"] else "its own", "share_cache"
    if (cold := result["cold_above_usd"]) is not None:
        yield "cold calls", f"refused once from ${cold} on", "cold_above_usd"


def _dollars(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if result["usd_per_day"] is None:
        return
    yield "today", _spent(result["spent_today"], result["usd_per_day"]), "usd_per_day"
    yield "this month", _spent(result["spent_this_month"], result["usd_per_month"]), "usd_per_month"
    yield "held", f"${result['held']} by calls that run", "the store"
    if (group := result["group_limits"]) is not None:
        today = _spent(group["spent_today"], group["usd_per_day"])
        month = _spent(group["spent_this_month"], group["usd_per_month"])
        yield "group today", today, "group_usd_per_day"
        yield "group this month", month, "group_usd_per_month"


def _models(one: dict[str, Any]) -> str:
    """Models that the app may call at a provider, and those of llm.yaml that it may not."""
    allowed = _listed(one["allowed_models"]) if one["allowed_models"] else ""
    if one.get("any_model"):
        default = f"; {allowed} if a call names none" if allowed else ""
        allowed = f"any model that matches{default}"
    refused = f"not {', '.join(one['refused_models'])}" if one["refused_models"] else ""
    return "; ".join(filter(None, (allowed, refused))) or "any model that matches"


def _spent(spent: str, limit: str) -> str:
    return f"${spent} of {limit if limit == 'unlimited' else '$' + limit}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _number(count: int | None, noun: str) -> str:
    return f"any number of {noun}" if count is None else f"{count:,} {noun}"


# ── Nodes ────────────────────────────────────────────────────────────────────────────────────────


@click.group(cls=CommandGroup, invoke_without_command=True)
@home_option
@json_option
@click.pass_context
def nodes(ctx: click.Context, home: Path, as_json: bool) -> None:
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
    print_report(result, _node_lines(result), as_json=as_json)


def _node_lines(result: dict[str, Any]) -> Iterator[Line]:
    yield f"{result['store']}, generation {result['generation']} of the grants"
    if not result["nodes"]:
        yield "no node runs"
        return
    starts = sorted(
        result["nodes"], key=lambda one: (one["name"], one["state"] in _RUNNING, one["id"])
    )
    latest = {one["name"]: one for one in starts}.values()  # of each, one that runs, or its last
    figures = ("calls", "a minute", "lag", "waiting", "grants")
    rows = table("node", "state", "version", "address", *figures, "started", right=figures)
    for one in latest:
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
    for one in latest:
        if one["state"] in _RUNNING:
            yield from ((f"{one['name']}: {each}", "yellow") for each in one["report"]["problems"])


@nodes.command()
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
