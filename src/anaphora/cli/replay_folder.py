"""Subcommands of `anaphora replay` that work on recordings: verify, list, show,
accept-rules, sign."""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from anaphora.errors import InvalidRequest, Io, NewerSchema, SignatureMismatch
from anaphora.replay.disk import io_errors, locked
from anaphora.replay.fixture import Fixture
from anaphora.replay.index import RULES, SIGNATURE, FixtureEntry
from anaphora.replay.integrity import CheckedFolder, check_folder, rules_hash
from anaphora.replay.rules import ReplaySettings
from anaphora.replay.signing import SigningKey, public_key, sign_folder, signer_of
from anaphora.replay.store import FixtureStore
from anaphora.wording import counted

from .common import MISMATCH, print_json, report_problems, stop
from .main import INTEGRITY, QUARANTINED
from .terminal import Line, Terminal, one_line, print_report, table, tracked

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


def _open(folder: Path, signed_by: str | None) -> FixtureStore:
    return FixtureStore.open(
        folder,
        track=_track,
        signed_by=None if signed_by is None else public_key(signed_by),
    )


def signing_key(file: Path) -> SigningKey:
    """The private key in the file. If there is no file, it is created, and the public key is
    printed to standard error."""
    if os.path.lexists(file):
        return SigningKey.read(file)
    key = SigningKey.generate(file)
    report_problems([f"{file} has a new private key; its public key is {key.public}"])
    return key


@click.command()
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
    except NewerSchema as problem:
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


@click.command("list")
@_FOLDER
@signed_by_option
@click.option("--model", help="Only fixtures of this model.")
@_JSON
def list_fixtures(folder: Path, signed_by: str | None, model: str | None, as_json: bool) -> None:
    """List the fixtures of DIR in the order they were recorded."""
    store = _open(folder, signed_by)
    found = [(entry.path, store.fixture(entry.path, request=False)) for entry in store.entries]
    found = [(path, one) for path, one in found if model in (None, one.model)]
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


@click.command()
@_FOLDER
@click.argument("name")
@signed_by_option
@_JSON
def show(folder: Path, name: str, signed_by: str | None, as_json: bool) -> None:
    """Print one fixture of DIR: NAME is the beginning of its file name or key."""
    store = _open(folder, signed_by)
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


@click.command()
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


@click.command()
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


SUBCOMMANDS = (verify, list_fixtures, show, accept_rules, sign)
