"""The output of `anaphora watch`: judged calls and their summary as lines for people, or as JSON
lines for machines; to the terminal or a file, the rest to standard error."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.cache.verdict.advice import cause_name
from anaphora.client.config.folders import user_folder
from anaphora.errors import Io
from anaphora.traffic.calls import CallKind
from anaphora.traffic.placing import AppliedFix
from anaphora.traffic.summary import CallGroup, WatchSummary
from anaphora.traffic.sums import CallSums, JudgedCall
from anaphora.wording import counted, format_loss, format_share, format_usd, visible_json

from .common import report_problems
from .log_files import unpriced_note
from .terminal import (
    MISSED,
    RESULT_COLOURS,
    Line,
    Rows,
    Terminal,
    detail_lines,
    one_line,
    print_lines,
)

#: Words of the summary for calls that are not judged: singular and plural.
_COUNTED: dict[CallKind, tuple[str, str]] = {
    "error": ("error", "errors"),
    "failed": ("without a complete answer", "without a complete answer"),
    "cancelled": ("cancelled", "cancelled"),
    "refused": ("refused", "refused"),
    "counts_tokens": ("counted tokens", "counted tokens"),
    "other": ("other request", "other requests"),
    "not_judged": ("not judged", "not judged"),
    "realtime": ("over Realtime", "over Realtime"),
}

#: Conversations that the summary lists one by one.
_MOST_ROWS = 20


# ── One call ─────────────────────────────────────────────────────────────────────────────────────


def call_lines(call: JudgedCall) -> Iterator[Line]:
    """A call in a line, and below it why tokens were not read."""
    clock = time.strftime("%H:%M:%S", time.localtime(call.at))
    start = f"#{call.number} {clock} "
    if call.verdict is None:
        yield _unjudged_line(start, call)
    else:
        yield _judged_line(start, call, call.verdict)
        if call.verdict.result in MISSED:
            sentence = one_line(call.verdict.describe(excerpts=False))
            yield f"    {sentence}", RESULT_COLOURS[call.verdict.result]
            yield from detail_lines(call.verdict)
        if call.reason:
            yield f"    no bill: {one_line(call.reason)}", "dim"
    for notice in call.notices:
        yield f"    {one_line(notice.message)}", "yellow"


def _judged_line(start: str, call: JudgedCall, verdict: Verdict) -> Line:
    usage = call.input_usage
    assert usage is not None
    total, read = usage.input or 0, usage.read or 0
    share = f" ({format_share(read / total)})" if total else ""
    tokens = f"read {read:,} of {counted(total, 'token')}{share}"
    if call.predicted is not None:
        tokens += f", predicted: {'no bill' if call.usage is None else 'the bill has no reads'}"
    cost = "" if call.cost_usd is None else f", {format_usd(call.cost_usd)}"
    place = f"conversation {call.conversation}, turn {call.turn}"
    result = verdict.result.replace("_", " ")
    return [
        start,
        f"{one_line(call.model)} · {place} · ",
        (result, RESULT_COLOURS[verdict.result]),
        f" · {tokens}{cost}",
    ]


def _unjudged_line(start: str, call: JudgedCall) -> Line:
    what = one_line(call.model) or f"{call.method} {one_line(call.path)}"
    status = f" {call.status}" if call.status else ""
    style = "red" if call.kind in ("error", "failed", "refused") else "dim"
    kind = call.kind.replace("_", " ")
    reason = f": {one_line(call.reason)}" if call.reason else ""
    if call.usage is not None:
        read, total = call.usage.read or 0, call.usage.input or 0
        kind += f" · read {read:,} of {counted(total, 'token')}"
        kind += "" if call.cost_usd is None else f", {format_usd(call.cost_usd)}"
    return [start, (f"{what} ·{status} {kind}{reason}", style)]


# ── The summary ──────────────────────────────────────────────────────────────────────────────────


def summary_lines(summary: WatchSummary) -> Iterator[Line]:
    judged, side = summary.judged, summary.side_calls
    yield _counts(summary), "bold"
    for line in summary.advice:
        yield line, "green" if summary.all_is_well else "yellow"
    if summary.share_read is not None and not summary.all_is_well:
        share = f"{format_share(summary.share_read)} of {counted(judged.reported, 'input token')}"
        yield f"{share} read from the cache"
    if judged.unreported:
        tokens = counted(judged.unreported, "input token")
        yield f"{tokens} in bills without a count of cache reads, not in the share", "dim"
    if summary.spent_usd is not None:
        yield _spent(summary)
    if len(summary.groups) > 1:
        yield _groups(summary.groups)
    no_bill = judged.no_bill + side.no_bill
    if no_bill:
        calls = f"{counted(no_bill, 'call')} without a bill"
        yield f"{calls}: losses are predicted, and no other sum counts them", "yellow"
    if summary.unpriced:
        yield unpriced_note(summary.unpriced), "dim"
    if summary.lost:
        yield from _lost(summary)
    for call in summary.worst:
        verdict = call.verdict
        assert verdict is not None
        place = f"#{call.number} {one_line(call.model)}, conversation {call.conversation}"
        sentence = one_line(verdict.describe(excerpts=False))
        yield [f"  {place}, turn {call.turn}: ", (sentence, RESULT_COLOURS[verdict.result])]
        yield from detail_lines(verdict)


def _counts(summary: WatchSummary) -> str:
    if not summary.calls:
        return "no calls"
    parts = []
    if summary.judged.calls:
        conversations = counted(summary.conversations, "conversation")
        parts.append(f"{summary.judged.calls:,} in {conversations}")
    if summary.side_calls.calls:
        parts.append(counted(summary.side_calls.calls, "side call"))
    for kind, (one, several) in _COUNTED.items():
        if number := summary.kinds.get(kind, 0):
            parts.append(counted(number, one, several))
    return f"{counted(summary.calls, 'call')}: {', '.join(parts)}"


def _spent(summary: WatchSummary) -> str:
    assert summary.spent_usd is not None
    text = f"{format_usd(summary.spent_usd)} spent"
    if summary.side_calls.cost_usd:
        text += f", {format_usd(summary.side_calls.cost_usd)} of it by side calls"
    saved = Decimal(0) if summary.all_is_well else summary.saved_usd
    return f"{text}; the cache saved {format_usd(saved)}" if saved > 0 else text


def _lost(summary: WatchSummary) -> Iterator[Line]:
    tokens = counted(summary.lost, "token")
    were = "was" if summary.lost == 1 else "were"
    could = f"{tokens} could have been read and {were} not"
    yield f"{format_loss(summary.lost_usd)}: {could}", "red"
    rows = Rows(("  cause", "calls", "tokens", "cost"), right=("calls", "tokens", "cost"))
    for cause, losses in summary.losses.items():
        cost = "unknown" if losses.cost_usd is None else format_usd(losses.cost_usd)
        rows.add_row(f"  {cause_name(cause)}", f"{losses.calls:,}", f"{losses.tokens:,}", cost)
    yield rows


def _groups(groups: tuple[CallGroup, ...]) -> Line:
    """A row for each conversation, and for the side calls of each model; of many, the rest in
    one."""
    titles = ("  conversation", "calls", "input", "read", "cost")
    rows = Rows(titles, right=titles[1:])
    shown, rest = groups, CallSums()
    if len(groups) > _MOST_ROWS:
        largest = sorted(groups, key=lambda each: each.sums.input, reverse=True)[:_MOST_ROWS]
        shown = tuple(group for group in groups if group in largest)
        for group in groups:
            if group not in shown:
                rest.add_sums(group.sums)
    for group in shown:
        name = "side calls" if group.side_calls else str(group.conversation)
        _add_row(rows, f"  {name} ({one_line(group.model)})", group.sums)
    if rest.calls:
        _add_row(rows, f"  {len(groups) - len(shown):,} more", rest)
    return rows


def _add_row(rows: Rows, name: str, sums: CallSums) -> None:
    share = "" if sums.share_read is None else format_share(sums.share_read)
    priced = sums.calls > sums.unpriced + sums.no_bill
    cost = format_usd(sums.cost_usd) if priced else "unknown"
    rows.add_row(name, f"{sums.calls:,}", f"{sums.input:,}", share, cost)


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────


def json_line(kind: str, fields: dict[str, Any]) -> str:
    return visible_json(msgspec.json.encode({"type": kind, **fields})).decode()


def summary_fields(summary: WatchSummary) -> dict[str, Any]:
    """Amounts that nothing was computed for are null."""
    fields: dict[str, Any] = msgspec.to_builtins(summary)
    savings, usd = summary.savings, summary.avoidable_usd
    saved = (str(savings.saved_usd), savings.share) if savings.calls else (None, None)
    fields["savings"] |= dict(zip(("saved_usd", "share"), saved, strict=True))
    for name in () if savings.calls else ("billed", "simulated", "with_markers"):
        fields["savings"][name] = None
    sums = [fields[name] for name in ("judged", "side_calls", "realtime", "unread")]
    for each in (*sums, *(group["sums"] for group in fields["groups"])):
        if each["calls"] and each["calls"] == each["unpriced"] + each["no_bill"]:
            each |= {"cost_usd": None, "saved_usd": None}
    first = {"advice": summary.advice, "avoidable_usd": None if usd is None else str(usd)}
    return first | fields | {"worst": [call.number for call in summary.worst]}


# ── Destination ──────────────────────────────────────────────────────────────────────────────────


class WatchOutput:
    """Lines of calls go to `lines`, as JSON or for people. So does the summary, and to standard
    error if that is another stream.

    If they cannot be written any more (a full disk, a closed pipe), the command is not disturbed:
    the reason is reported with the summary.
    """

    def __init__(self, lines: IO[str], name: str, *, as_json: bool) -> None:
        """`name` is that of the file."""
        self._file = lines
        self._name = name
        self._as_json = as_json
        self._lock = threading.Lock()
        on_terminal = lines in (sys.stdout, sys.stderr)
        self._terminal = Terminal(file=None if on_terminal else lines, stderr=lines is sys.stderr)
        self._summary_apart = not on_terminal
        self._failure = ""

    def start(self, url: str, page: str | None, exports: Mapping[str, str]) -> None:
        """Prints the address of the proxy as JSON. Raises if it cannot be written."""
        if self._as_json:
            self._write(self._json("start", {"url": url, "page": page, "exports": dict(exports)}))
        if self._failure:
            raise Io(self._failure)

    def call(self, call: JudgedCall) -> None:
        self._write(self._json("call", call.fields()) if self._as_json else call_lines(call))

    def fix(self, fix: AppliedFix) -> None:
        """Prints a change before the first request that has it is sent."""
        shown = iter([(one_line(str(fix)), "cyan")])
        self._write(self._json("fix", msgspec.structs.asdict(fix)) if self._as_json else shown)

    def note(self, text: str) -> None:
        """A notice about a call that is about to be sent."""
        lines: Iterator[Line] = iter([(f"    {one_line(text)}", "yellow")])
        self._write(self._json("notice", {"message": text}) if self._as_json else lines)

    def summary(self, summary: WatchSummary) -> None:
        fields, lines = summary_fields(summary), summary_lines(summary)
        self._write(self._json("summary", fields) if self._as_json else lines)
        if self._failure:
            announce(self._failure)
        if self._summary_apart or (self._failure and self._file is not sys.stderr):
            with contextlib.suppress(OSError):
                print_lines(Terminal(stderr=True), summary_lines(summary))

    @staticmethod
    def _json(kind: str, fields: dict[str, object]) -> str:
        return json_line(kind, fields) + "\n"

    def _write(self, written: str | Iterator[Line]) -> None:
        with self._lock:
            if self._failure:
                return
            try:
                if isinstance(written, str):
                    self._file.write(written)
                    self._file.flush()
                else:
                    print_lines(self._terminal, written)
            except OSError as problem:
                self._failure = f"{self._name}: cannot be written: {problem.strerror or problem}"


@contextlib.contextmanager
def opened_log(path: Path) -> Iterator[IO[str]]:
    """A file that is appended to. Only its owner may read it: it has excerpts of prompts."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as problem:
        raise Io(f"{path}: cannot be written: {problem.strerror or problem}") from None
    file = open(descriptor, "a", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        yield file
    finally:
        # Every line was flushed, and failures were reported then.
        with contextlib.suppress(OSError):
            file.close()


def default_log() -> Path:
    """A new file in the user's folder for state."""
    folder = user_folder("XDG_STATE_HOME", ".local/state") / "watch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise Io(f"{folder}: cannot be created: {problem.strerror or problem}") from None
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def announce(text: object) -> None:
    """A line on standard error, before or after the command."""
    report_problems([text])


def export_lines(exports: Mapping[str, str], shell: str) -> Iterator[str]:
    """Commands that set the variables in a shell, given by its name or path."""
    name = os.path.basename(shell)
    for variable, value in exports.items():
        if name == "fish":
            yield f"set -gx {variable} {shlex.quote(value)}"
        elif name in ("pwsh", "powershell"):
            yield f"$env:{variable} = '{value}'"
        elif name in ("csh", "tcsh"):
            yield f"setenv {variable} {shlex.quote(value)}"
        else:
            yield f"export {variable}={shlex.quote(value)}"


def echo_exports(exports: Mapping[str, str], *, err: bool) -> None:
    shell = os.environ.get("SHELL", "pwsh" if sys.platform == "win32" else "sh")
    for line in export_lines(exports, shell):
        click.echo(line, err=err)
