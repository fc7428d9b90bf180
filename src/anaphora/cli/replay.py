"""`anaphora replay` runs a command on recorded responses, `anaphora record` makes the recordings.
The subcommands of `replay` work on recordings: verify, list, show, accept-rules, sign."""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from anaphora.errors import InvalidRequest, Io, OtherSchema, SignatureMismatch
from anaphora.replay.disk import io_errors, locked
from anaphora.replay.fixture import Fixture
from anaphora.replay.index import RULES, SIGNATURE, FixtureEntry
from anaphora.replay.integrity import CheckedFolder, check_folder, rules_hash
from anaphora.replay.rules import ReplaySettings
from anaphora.replay.signing import SigningKey, public_key, sign_folder, signer_of
from anaphora.replay.store import FixtureStore
from anaphora.wording import counted

from .common import (
    INTEGRITY,
    MISMATCH,
    QUARANTINED,
    RunGroup,
    command_after_dashes,
    print_json,
    report_problems,
    stop,
)
from .recorded_run import RecordedRun, recording_options, run_recorded
from .terminal import Line, Terminal, one_line, print_report, table, tracked

if TYPE_CHECKING:
    from anaphora.replay.player import Player

_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
signed_by_option = click.option(
    "--signed-by",
    metavar="KEY",
    help="Require a signature with this public key: ed25519:…, or a file that holds it.",
)
_SIGN = click.option(
    "--sign",
    "key_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Private key of a folder that is signed, to sign it again.",
)
#: Lines of problems that a page shows.
_MOST = 20


def _track(entries: Iterable[FixtureEntry], total: int) -> Iterator[FixtureEntry]:
    return tracked(entries, "Verifying fixtures", total=total)


def signing_key(file: Path) -> SigningKey:
    """The private key in the file. If there is no file, it is created, and the public key is
    printed to standard error."""
    if os.path.lexists(file):
        return SigningKey.read(file)
    key = SigningKey.generate(file)
    report_problems([f"{file} has a new private key; its public key is {key.public}"])
    return key


@click.group(cls=RunGroup)
@click.option(
    "--repeat",
    type=click.Choice(("never", "last")),
    default="never",
    show_default=True,
    help="Response to a request that is sent more often than it was recorded: an error, or the last"
    " answer again.",
)
@click.option("--pace", is_flag=True, help="Stream at the recorded speed.")
@signed_by_option
@recording_options
@click.pass_context
def command(
    ctx: click.Context,
    repeat: Literal["never", "last"],
    pace: bool,
    signed_by: str | None,
    options: RecordedRun,
) -> None:
    """Run a command on recorded responses, or verify and list recordings.

    \b
    anaphora replay --dir DIR -- COMMAND...    run a command offline
    anaphora replay verify DIR                 check the files of a folder

    The options below go with COMMAND. It needs neither a network nor a key: a missing key is
    replaced by a placeholder. Working directory, home folder and date may differ from the
    recordings. A request that was not recorded gets an error that names the nearest recording and
    the first difference.

    Exit code: the command's own; 1 when it ended with 0 and a request was not recorded; before
    anything runs, 5 when the folder failed its integrity check, 3 when its signature does not
    match.
    """
    if ctx.invoked_subcommand is not None:
        return

    def player(secrets: Sequence[str]) -> Player:
        from anaphora.replay.player import Player

        return Player(
            options.folder,
            "none",
            repeat=repeat,
            rules=options.rules,
            secrets=secrets,
            signed_by=None if signed_by is None else public_key(signed_by),
        )

    run_recorded(command_after_dashes(ctx), player, options, pace=pace, offline=True)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option(
    "--mode",
    type=click.Choice(("all", "new", "once")),
    default="all",
    show_default=True,
    help="all: record every call, even if a recording exists. new: answer recorded calls from the"
    " recordings, and record the others. once: record in a new or empty folder, else only replay.",
)
@click.option(
    "--sign",
    "key_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Sign the recordings with the private key in FILE, which is created if it is missing.",
)
@recording_options
def record(
    words: tuple[str, ...],
    mode: Literal["all", "new", "once"],
    key_file: Path | None,
    options: RecordedRun,
) -> None:
    """Run a command and record its calls, to replay them offline.

    \b
    anaphora record -- python agent.py
    anaphora replay -- python agent.py

    The calls go through a local proxy. The program is not changed, and a base URL that you have set
    remains the destination. Recordings hold prompts and answers. Keys and other secrets are removed
    before anything is written.

    Exit code: the command's own; 1 when it ended with 0 and an answer could not be recorded.
    """

    def player(secrets: Sequence[str]) -> Player:
        from anaphora.replay.player import Player

        sign = None if key_file is None else signing_key(key_file)
        return Player(options.folder, mode, rules=options.rules, secrets=secrets, sign=sign)

    run_recorded(words, player, options)


# ── Recordings ───────────────────────────────────────────────────────────────────────────────────


@command.command()
@_FOLDER
@signed_by_option
@_JSON
def verify(folder: Path, signed_by: str | None, as_json: bool) -> None:
    """Check every file of DIR against its index.

    Exit code 5 when a file was changed, added, removed or replaced; 3 when the signature does not
    match; 4 when a newer version of anaphora wrote the folder. Nothing is changed.
    """
    expected = None if signed_by is None else public_key(signed_by)
    if not folder.is_dir():
        raise Io(f"{folder}: there is no such folder")
    checked = CheckedFolder(folder)
    signer, unsigned, newer = "", "", ""
    try:
        with io_errors(folder, "cannot be read"), locked(folder, exclusive=False):
            checked = check_folder(folder, track=_track, deep=True)
            signer = signer_of(folder, checked.index, expected)
    except SignatureMismatch as problem:
        unsigned = str(problem)
    except OtherSchema as problem:
        newer = str(problem)
    problems = checked.problems
    report = {
        "ok": not (problems or unsigned or newer),
        "folder": str(folder),
        "fixtures": len(checked.entries),
        "problems": problems,
        "interrupted": sorted(checked.interrupted),
        "signed_by": signer or None,
        "signature_problem": unsigned or None,
        "schema_problem": newer or None,
    }
    lines = [] if newer else _verify_lines(checked, signer, expected)
    if as_json or not newer:
        print_report(report, lines, as_json=as_json)
    report_problems(filter(None, (newer, unsigned)))
    if newer:
        stop(MISMATCH)
    if unsigned:
        stop(INTEGRITY)
    if problems:
        report_problems([f"{folder}: failed its integrity check, so it cannot be replayed"])
        stop(QUARANTINED)


def _verify_lines(checked: CheckedFolder, signer: str, expected: str | None) -> Iterator[Line]:
    problems = checked.problems
    if problems:
        yield f"{checked.folder}: {counted(len(problems), 'problem')}", "bold red"
        rows = table("check", "file", "problem")
        for problem in problems[:_MOST]:
            rows.add_row(problem.check, problem.path, problem.message)
        yield rows
        if len(problems) > _MOST:
            yield f"and {len(problems) - _MOST:,} more; --json has them all", "dim"
    else:
        yield f"{checked.folder}: {counted(len(checked.entries), 'fixture')}, unchanged"
    if checked.interrupted:
        what = counted(len(checked.interrupted), "file")
        yield f"{what} of an interrupted recording; the next recording removes them", "dim"
    if signer:
        yield f"signed with {signer}"
        if expected is None:
            yield "that key comes from the folder itself; --signed-by KEY requires yours", "dim"
    elif (checked.folder / SIGNATURE).exists() and not problems:
        yield "signature not checked: pip install 'anaphora[sign]'", "dim"


def _fields(path: str, fixture: Fixture) -> dict[str, Any]:
    return {
        "path": path,
        "key": fixture.key,
        "number": fixture.number,
        "provider": fixture.provider,
        "model": fixture.model,
        "method": fixture.method,
        "url_path": fixture.path,
        "status": fixture.status,
        "failure": fixture.failure,
        "pieces": len(fixture.pieces),
        "bytes": len(fixture.payload),
        "altered": fixture.altered,
        "recorded": fixture.recorded or None,
        "raw_hash": fixture.raw_hash,
    }


@command.command("list")
@_FOLDER
@_JSON
def list_fixtures(folder: Path, as_json: bool) -> None:
    """List the fixtures of DIR in the order they were recorded."""
    store = FixtureStore.open(folder, track=_track)
    found = [(entry.path, store.fixture(entry.path, request=False)) for entry in store.entries]
    if as_json:
        print_json([_fields(path, one) for path, one in found])
        return
    rows = table("file", "recorded", "provider", "model", "request", "status", "pieces", "bytes",
                 right=("status", "pieces", "bytes"))  # fmt: skip
    for path, one in found:
        rows.add_row(
            path,
            _when(one.recorded),
            one_line(one.provider),
            one_line(one.model),
            one_line(f"{one.method} {one.path}"),
            one.failure or str(one.status),
            f"{len(one.pieces):,}",
            f"{len(one.payload):,}",
        )
    Terminal().page(rows)


def _when(seconds: float) -> str:
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


@command.command()
@_FOLDER
@click.argument("name")
@_JSON
def show(folder: Path, name: str, as_json: bool) -> None:
    """Print one fixture of DIR: NAME is the beginning of its file name or key."""
    store = FixtureStore.open(folder, track=_track)
    path = _find(store, name)
    one = store.fixture(path)
    if as_json:
        body = {"request": _text(one.request), "headers": one.headers}
        pieces = [{"seconds": piece.seconds, "text": _text(piece.data)} for piece in one.pieces]
        print_json(_fields(path, one) | body | {"response": pieces})
        return
    print_report(None, _fixture_lines(path, one), as_json=False)


def _find(store: FixtureStore, name: str) -> str:
    paths = [entry.path for entry in store.entries]
    if name in paths:
        return name
    found = [
        entry.path
        for entry in store.entries
        if entry.path.startswith(name) or entry.key.startswith(name)
    ]
    if len(found) != 1:
        reason = f"{len(found)} fixtures begin with it" if found else "no such fixture"
        raise InvalidRequest(
            f"{reason}; anaphora replay list {shlex.quote(str(store.folder))} shows them", path=name
        )
    return found[0]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _fixture_lines(path: str, one: Fixture) -> Iterator[Line]:
    for name, value in _fields(path, one).items():
        if name == "recorded":
            value = _when(one.recorded)
        if value not in (None, ""):
            yield f"{name:10}{one_line(str(value))}"
    yield "\nrequest", "bold"
    yield from _shown(one.request)
    yield "\nresponse", "bold"
    for header, value in one.headers:
        yield f"{header}: {one_line(value)}", "dim"
    yield from _shown(one.payload)


def _shown(data: bytes) -> list[str]:
    return _text(data).split("\n")


@command.command()
@_FOLDER
@_SIGN
@_JSON
def accept_rules(folder: Path, key_file: Path | None, as_json: bool) -> None:
    """Accept a replay.toml of DIR that was changed, added or removed, and update the index.

    Its rules select the recorded answer of a request, so DIR cannot be replayed before.
    """
    sign = None if key_file is None else SigningKey.read(key_file)
    store = FixtureStore.open(folder, track=_track, sign=sign, changed_rules=True)
    if store.rules is not None:
        ReplaySettings.decode(store.rules, str(folder / RULES))
    changed = store.accept_rules()
    if store.rules is None:
        what = f"without {RULES}"
    else:
        what = f"{RULES} {'listed' if changed else 'is listed already'}"
    report = {"folder": str(folder), "rules": rules_hash(store.rules) or None, "changed": changed}
    print_report(report, [f"{folder}: {what}"], as_json=as_json)


@command.command()
@_FOLDER
@click.option(
    "--key",
    "key_file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="Private key, outside of DIR; created if it is missing.",
)
@_JSON
def sign(folder: Path, key_file: Path, as_json: bool) -> None:
    """Verify DIR and sign its index, so that `verify --signed-by` detects deliberate changes.

    Keep the private key out of the repository and of DIR. Anyone may know the public key.
    """
    if not folder.is_dir():
        raise Io(f"{folder}: there is no such folder")
    key = signing_key(key_file)
    count = sign_folder(folder, key, track=_track)
    lines = [f"{folder}: signed {counted(count, 'fixture')} with {key.public}"]
    print_report({"fixtures": count, "signed_by": key.public}, lines, as_json=as_json)
