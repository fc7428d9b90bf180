"""`anaphora replay variables`, and the report of `anaphora replay --explain-miss`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from anaphora.errors import InvalidRequest
from anaphora.replay.disk import FolderWriter, io_errors
from anaphora.replay.index import RULES
from anaphora.replay.signing import SigningKey, is_signed
from anaphora.replay.store import FixtureStore
from anaphora.wording import counted, visible

from .common import FOUND, stop
from .terminal import Line, one_line, print_report, table

if TYPE_CHECKING:
    from anaphora.replay.folder_variables import RecordingComparison
    from anaphora.replay.player import Player

_DIR = click.Path(path_type=Path)


def explained(player: Player) -> Iterator[str]:
    """Why requests were not found, and the variables of the recordings and of this run."""
    from anaphora.replay.comparison import as_toml

    variables = player.report.variables
    yield "anaphora: variables that differ between the recordings and this run:"
    for one in variables:
        yield f"  {one.name}  recorded {visible(one.recorded)}  now {visible(one.now)}"
    if not variables:
        yield "  none"
    for miss in player.explanations:
        yield f"anaphora: no recording: {miss.request}"
        if not miss.nearest:
            yield f"  {visible(miss.reason)}"
            continue
        yield f"  nearest: {miss.nearest}"
        yield from (f"  {visible(str(each))}" for each in miss.differences)
        if miss.rules:
            yield f"  these rules would make them equal; check and add them to {RULES}:"
            yield ""
            yield visible(as_toml(miss.rules), "\n")


@click.command()
@click.argument("folder", metavar="DIR", type=_DIR)
@click.argument("other", metavar="[OTHER]", type=_DIR, required=False)
@click.option("--write", is_flag=True, help="Add the rules that were found to DIR/replay.toml.")
@click.option(
    "--sign",
    "key_file",
    metavar="FILE",
    type=_DIR,
    help="Private key of a folder that is signed, to sign it again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def variables(
    folder: Path, other: Path | None, write: bool, key_file: Path | None, as_json: bool
) -> None:
    """List the variables of the recordings in DIR, or find more by comparing them with OTHER.

    OTHER is a recording of the same program in another directory, on another day or on another
    machine. Texts that differ become match rules, which --write adds to DIR/replay.toml.

    Exit code 1 when differences are left that no rule can express.
    """
    if other is None:
        if write:
            raise click.UsageError("--write needs OTHER: the rules come from a comparison.")
        _list(FixtureStore.open(folder), as_json=as_json)
        return
    from anaphora.replay.comparison import as_toml
    from anaphora.replay.folder_variables import compare

    sign = None if key_file is None else SigningKey.read(key_file)
    store = FixtureStore.open(folder, sign=sign)
    found = compare(store, FixtureStore.open(other))
    if write and found.rules:
        _write(store, as_toml(found.rules), sign)
    report = {**msgspec.structs.asdict(found), "written": bool(write and found.rules)}
    print_report(report, _lines(found, folder, write=write), as_json=as_json)
    if found.left:
        stop(FOUND)


def _list(store: FixtureStore, *, as_json: bool) -> None:
    from anaphora.replay.folder_variables import variables_of

    found = variables_of(store)
    rows = table("variable", "value", "recordings", right=("recordings",))
    for (name, value), count in found.items():
        rows.add_row(name, one_line(value), f"{count:,}")
    report = [{"name": name, "value": value, "recordings": n} for (name, value), n in found.items()]
    empty = f"{store.folder}: no variables in {counted(len(store), 'recording')}"
    print_report(report, [rows] if found else [empty], as_json=as_json)


def _write(store: FixtureStore, rules: str, sign: SigningKey | None) -> None:
    """Add rules to the replay.toml of a folder, and list it in the index."""
    if sign is None and is_signed(store.folder):
        reason = "is signed, so a change needs a signature: give --sign FILE"
        raise InvalidRequest(reason, path=str(store.folder))
    before = "" if store.rules is None else store.rules.decode().rstrip("\n") + "\n\n"
    with io_errors(store.folder):
        FolderWriter(store.folder, sync=True).replace(RULES, (before + rules).encode())
    FixtureStore.open(store.folder, sign=sign, changed_rules=True).accept_rules()


def _lines(found: RecordingComparison, folder: Path, *, write: bool) -> Iterator[Line]:
    from anaphora.replay.comparison import as_toml

    yield f"{counted(found.compared, 'request')} compared, {found.equal:,} equal before"
    rows = table("variable", "in DIR", "in OTHER")
    for one in found.variables:
        rows.add_row(one.name, one_line(one.recorded), one_line(one.now))
    if found.variables:
        yield rows
    if found.rules:
        place = f"written to {folder / RULES}" if write else f"--write adds them to {RULES}"
        yield f"\n{counted(len(found.rules), 'rule')} found; {place}:\n", "bold"
        yield from as_toml(found.rules).split("\n")
    yield from _left(found.left)


def _left(left: Sequence[str]) -> Iterator[Line]:
    if left:
        yield f"{counted(len(left), 'difference')} without a rule:", "bold"
        yield from (f"  {one_line(each)}" for each in left)
