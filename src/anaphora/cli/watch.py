"""`anaphora watch`"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from anaphora.wording import counted, format_usd

from .common import FOUND, HtmlFile, html_option, require, stop
from .parameters import Cold, ColdParameter, Dollars
from .recorded_run import (
    forwarding_for,
    needs_proxy,
    network_for,
    notices_of,
    proxy_option,
    redirected,
    report_recorded,
    routes_of,
    secrets_of,
    upstream_option,
    why_no_calls,
)
from .watch_output import WatchOutput, announce, default_log, echo_exports, opened_log

if TYPE_CHECKING:
    from anaphora.proxy.cold_guard import ColdCheck
    from anaphora.proxy.forward import Forwarding
    from anaphora.proxy.observing import Observer
    from anaphora.proxy.page import WatchedCalls, WatchPage
    from anaphora.proxy.recording import RecordedUpstream
    from anaphora.proxy.routes import NetworkUpstream
    from anaphora.proxy.server import Proxy
    from anaphora.proxy.spend_check import SpendCheck
    from anaphora.traffic.judging import Judge
    from anaphora.traffic.placing import Placer

#: The port without a command: variables that were exported stay valid for the next run.
_PORT = 8788


_PASSES = "the same call passes if it is sent again within 10 minutes"


_cold_option = click.option(
    "--cold",
    type=ColdParameter(),
    metavar="ask|refuse|warn[:USD]",
    help="Before a call whose cached beginning is gone: ask, refuse it once, or warn, if it costs"
    " this much more than from the cache.  [default: 0.50]",
)


class _WatchCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dashes = "--" in args
        rest = super().parse_args(ctx, args)
        if dashes and not ctx.params.get("words"):
            ctx.fail("No command after --. Without a command, leave -- out as well.")
        return rest


@click.command(cls=_WatchCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Append the lines to FILE instead of showing them.",
)
@click.option("--web", is_flag=True, help="Serve live pages, and print their address.")
@html_option("Write a report to FILE when the command ends. It holds excerpts of prompts.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per call, and one for the summary."
)
@upstream_option
@proxy_option
@click.option(
    "--fix",
    is_flag=True,
    help="Change requests that lose their cache, if that saves money and changes no meaning:"
    " markers, lifetimes, cache key, host, order of tools.",
)
@_cold_option
@click.option(
    "--max-usd",
    type=Dollars(),
    metavar="USD",
    help="Refuse calls once this much is spent. The last call may exceed it.",
)
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also record the calls in DIR, like `anaphora record`. Recordings contain prompts.",
)
@click.option(
    "--audit",
    type=click.Path(path_type=Path),
    metavar="LOG",
    help="Append a row per call to an audit log in this folder.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port to listen on. By default any free one; {_PORT} without a command.",
)
def command(words: tuple[str, ...], **options: Any) -> None:
    """Run a command, and see what breaks its prompt cache while it runs.

    The command's calls to LLM providers go through a local proxy that changes nothing, unless
    --fix asks for it; each kind of change is shown before it is made. Each call is one line: the
    tokens read from the cache, the cost, and if a cached prefix broke, the field, the text before
    and after, and the price. A summary follows when the command ends.

    \b
    anaphora watch -- python agent.py
    anaphora watch --web -- claude
    anaphora watch --proxy -- node agent.mjs
    anaphora watch --max-usd 2 -- claude
    anaphora watch

    The lines go to standard error; for a command that draws on the whole terminal, to a file that
    is named before it starts. Without a command the proxy runs until Ctrl-C, prints the variables
    that make other programs use it, and shows the lines.

    With --json the objects go to standard output, or, with a command, to the file of --log. Their
    `type` is `start`, `call`, `fix`, `notice` or `summary`. Lines, objects and the report of --html
    contain excerpts of prompts if a prefix broke, and never a key. The exit code is the command's,
    or 1 if --record could not record an answer.
    """
    require("watch", "granian", extra="proxy")
    code = _watch(words, _WatchOptions(**options))
    if code:
        stop(code)


class _WatchOptions(NamedTuple):
    log: Path | None
    web: bool
    html: Path | None
    as_json: bool
    upstreams: tuple[str, ...]
    by_proxy: bool
    fix: bool
    cold: Cold | None
    max_usd: Decimal | None
    record: Path | None
    audit: Path | None
    port: int | None


def _watch(words: tuple[str, ...], options: _WatchOptions) -> int:
    """The exit code."""
    from anaphora.proxy import launch
    from anaphora.proxy.page import WatchedCalls, WatchPage
    from anaphora.proxy.server import running
    from anaphora.traffic.judging import Judge

    as_json, port = options.as_json, options.port
    if words and as_json and options.log is None:
        reason = "--json with a command needs --log FILE: standard output is the command's."
        raise click.UsageError(reason)
    if options.by_proxy and not words:
        raise click.UsageError("--proxy needs a command: its password is made for one run.")
    if words:
        launch.find(words, os.environ)
    by_proxy = needs_proxy(words, options.by_proxy, announce)
    routes = routes_of(words, options.upstreams, by_proxy=by_proxy)
    with contextlib.ExitStack() as stack:
        output = _output(stack, words, options.log, as_json=as_json)
        judge = Judge(output.call)
        html = None if options.html is None else stack.enter_context(HtmlFile(options.html))
        calls = WatchedCalls(judge) if options.web or html is not None else None
        page = WatchPage(judge, calls) if options.web and calls is not None else None
        placer = _placer(options, output)
        network = network_for(words)
        upstream = _recorded(options.record, network)
        observers = [judge, *_audited(stack, judge, options.audit)]
        cold = _cold_check(judge, options.cold, words, output.note)
        spend = _spend_check(judge, options.max_usd)
        observers += [each for each in (cold, spend, calls, placer) if each is not None]
        forwarding = stack.enter_context(forwarding_for(words, announce, by_proxy))
        proxy = running(
            routes,
            upstream=upstream or network,
            observers=observers,
            place=placer,
            pages=page,
            own_process=True,
            forwarding=forwarding,
            port=port if port is not None else 0 if words else _PORT,
        )
        if words:
            code = _run(proxy, words, page, output, forwarding)
        else:
            code = _serve(proxy, page, output, as_json)
        summary = judge.summary()
        output.summary(summary)
        if words and not summary.calls:
            announce(why_no_calls(by_proxy, code))
        if placer is not None:
            _report_fixes(placer)
        if spend is not None:
            announce(spend.limit.headline)
        if upstream is not None and report_recorded(upstream.player):
            code = code or FOUND
        if html is not None and calls is not None:
            _write_report(html, judge, calls)
    return code


# ── Output ───────────────────────────────────────────────────────────────────────────────────────


def _output(
    stack: contextlib.ExitStack, words: Sequence[str], log: Path | None, *, as_json: bool
) -> WatchOutput:
    """Lines go to the file of --log; else to standard error, unless the command owns the terminal;
    without a command to standard output."""
    from anaphora.proxy.programs import owns_terminal

    lines: IO[str] = sys.stderr if words else sys.stdout
    name = "standard error" if words else "standard output"
    if log is None and words and _is_terminal():
        log = default_log() if owns_terminal(words) else None
    if log is not None:
        lines, name = stack.enter_context(opened_log(log)), str(log)
        announce(f"calls are listed in {log}")
    return WatchOutput(lines, name, as_json=as_json)


def _audited(stack: contextlib.ExitStack, judge: Judge, audit: Path | None) -> Iterator[Observer]:
    if audit is None:
        return
    from anaphora.audit.log import AuditLog
    from anaphora.proxy.auditing import ProxyAudit

    log = stack.enter_context(contextlib.closing(AuditLog(audit, on_error=announce)))
    yield ProxyAudit(log, judge)


def _placer(options: _WatchOptions, output: WatchOutput) -> Placer | None:
    from anaphora.traffic.placing import Placer

    if not options.fix:
        return None
    return Placer(fix=True, on_fix=output.fix)


def _spend_check(judge: Judge, limit: Decimal | None) -> SpendCheck | None:
    if limit is None:
        return None
    from anaphora.proxy.spend_check import ProgramLimit, SpendCheck

    return SpendCheck(judge, ProgramLimit(limit))


def _recorded(folder: Path | None, network: NetworkUpstream) -> RecordedUpstream | None:
    if folder is None:
        return None
    from anaphora.proxy.recording import RecordedUpstream
    from anaphora.replay.player import Player

    return RecordedUpstream(Player(folder, "all", secrets=secrets_of(os.environ)), network)


def _write_report(html: HtmlFile, judge: Judge, calls: WatchedCalls) -> None:
    from anaphora.proxy.page import watch_report

    html.write(watch_report(judge, calls, time.time()))
    announce(f"the report is in {html.path}; it holds excerpts of prompts")


def _report_fixes(placer: Placer) -> None:
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in placer.fixes.items())
    changed = counted(placer.placed, "request")
    if not placer.placed:
        kinds = ", ".join(f"{n:,} {reason}" for reason, n in placer.unchanged.most_common())
    announce(f"{changed} changed{f': {kinds}' if kinds else ''}")
    for notice in placer.failures:
        announce(notice)


def _is_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


# ── With and without a command ───────────────────────────────────────────────────────────────────


def _run(
    running: contextlib.AbstractContextManager[Proxy],
    words: Sequence[str],
    page: WatchPage | None,
    output: WatchOutput,
    forwarding: Forwarding | None,
) -> int:
    from anaphora.proxy import launch
    from anaphora.proxy.programs import refuse_loop

    with running as proxy:
        refuse_loop(proxy.url, (route.upstream for route in proxy.routes))
        environ, changed = redirected(proxy, forwarding, words)
        for notice in notices_of(words, by_proxy=forwarding is not None):
            announce(notice)
        address = None if page is None else proxy.url + page.path
        if address is not None:
            announce(f"page: {address}")
        output.start(proxy.url, address, {})
        return launch.run(changed, environ, report=announce)


def _serve(
    running: contextlib.AbstractContextManager[Proxy],
    page: WatchPage | None,
    output: WatchOutput,
    as_json: bool,
) -> int:
    from anaphora.proxy.programs import exports, refuse_loop, unset_variables
    from anaphora.serving.server import serve

    def ready(proxy: Proxy) -> None:
        refuse_loop(proxy.url, (route.upstream for route in proxy.routes))
        variables = exports(proxy, os.environ)
        address = None if page is None else proxy.url + page.path
        output.start(proxy.url, address, variables)
        announce(f"watching at {proxy.url}; stop with Ctrl-C")
        if address is not None:
            announce(f"page: {address}")
        announce("set these variables where you start the programs to watch:")
        echo_exports(variables, err=as_json)
        if names := unset_variables(proxy, os.environ):
            announce(f"and unset {', '.join(names)} there; the proxy has what it needs of them")

    serve(running, ready)
    return 0


# ── Before a cold call ────────────────────────────────────────────────────────────────────────────


def _cold_check(
    judge: Judge, cold: Cold | None, words: Sequence[str], report: Callable[[str], None]
) -> ColdCheck | None:
    """The check of `--cold`. Says how it asks."""
    if cold is None:
        return None
    from anaphora.cache.cold import COLD_ABOVE_USD
    from anaphora.proxy.cold_guard import ColdCheck, ask_on_terminal, has_terminal
    from anaphora.proxy.programs import owns_terminal

    mode = cold.mode
    limit = COLD_ABOVE_USD if cold.above is None else cold.above
    what = f"calls that cost {format_usd(limit)} more than from the cache"
    ask = None
    if mode == "ask" and owns_terminal(words):
        announce(f"the command draws on the terminal: {what} are refused there; {_PASSES}")
    elif mode == "ask" and not has_terminal():
        announce(f"there is no terminal to ask on: {what} are refused; {_PASSES}")
    elif mode == "ask":
        ask = ask_on_terminal
        announce(f"before {what}, a question is asked here")
    elif mode == "refuse":
        announce(f"{what} are refused; {_PASSES}")
    return ColdCheck(judge, mode, above_usd=limit, ask=ask, report=report)
