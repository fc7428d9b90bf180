"""`anaphora init` and `anaphora backup`: a daemon's home folder, its backup and its restoration.

A backup is a folder of DIR, named by its time, with the layout of a home. It gets that name when it
is complete, by one rename, and replaces the one before: DIR always has a whole backup.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anaphora.errors import Io
from anaphora.wording import counted

from .daemon_connection import home_option, json_option, open_home, store_address_of
from .terminal import print_report

if TYPE_CHECKING:
    from anaphora.daemon.home import Home

_BACKUP = re.compile(r"\d{8}T\d{12}Z")
_UNFINISHED = ".unfinished"
_REPLACED = "replaced-"
#: Files that a running daemon has open, and those that it makes again: not copied as they are.
_OWN = ("store.sqlite", "dashboard.sqlite", "sent.marks", "settlements.journal", "daemon.lock")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
def init(folder: Path) -> None:
    """Create the home folder of a daemon.

    Writes into DIR a commented llm.yaml (providers), a commented extensions.yaml (what each app may
    do), and an empty folder for keys, all readable by you only. Existing files are not changed.

    Then store a key and start the daemon; with `anaphora serve --emulate` no key is needed.
    """
    from anaphora.daemon.home import init

    created = init(folder)
    lines: list[str] = [f"created {path}" for path in created] or ["all files exist already"]
    lines += [
        "",
        "next:",
        f"  anaphora secrets set ANTHROPIC_API_KEY --home {folder}",
        f"  anaphora apps add my-app --home {folder}",
        f"  anaphora serve --home {folder}    (with --emulate no key is needed)",
    ]
    print_report(None, lines, as_json=False)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--restore", is_flag=True, help="Restore the home from the backup in DIR.")
@home_option
@json_option
def backup(folder: Path, restore: bool, home: Path, as_json: bool) -> None:
    """Back up the home folder of a daemon to DIR, or restore it.

    Copies all files: a consistent snapshot of the store, the audit log, the keys and the
    settings. A daemon may run. DIR gets one folder, named by its time; when it is complete, it
    replaces the one of an earlier run. It holds the keys of providers, readable by you only. A
    store in PostgreSQL is not copied: use pg_dump.

    --restore needs a stopped daemon. The home may be missing; its present files move to a folder
    in it, `replaced-TIME`. Calls that were running at the time of the backup are charged their
    maximum cost.

    \b
    anaphora backup /var/backups/anaphora
    anaphora backup /var/backups/anaphora --restore
    """
    if restore:
        restored = _restored(folder, home)
        lines = [f"restored {restored['home']} from {restored['backup']}"]
        if restored["replaced"] is not None:
            lines.append(f"its earlier files are in {restored['replaced']}")
        print_report(restored, lines, as_json=as_json)
        return
    done = _backed_up(open_home(home), folder)
    sizes = f"{counted(done['files'], 'file')}, {counted(done['bytes'], 'byte')}"
    lines = [f"{done['backup']}: {sizes}"]
    if "://" in done["store"]:
        lines.append(f"without the store: it is at {done['store']}; back it up with pg_dump")
    print_report(done, lines, as_json=as_json)


# ── Backup ───────────────────────────────────────────────────────────────────────────────────────


def _backed_up(home: Home, folder: Path) -> dict[str, Any]:
    """The report; `store` is `copied`, PostgreSQL's address, or `none`: no daemon has run yet."""
    from anaphora.daemon.home.config import daemon_config
    from anaphora.daemon.store import upkeep
    from anaphora.daemon.store.schema import refuse_lost_file

    folder = folder.resolve()
    if folder.is_relative_to(home.path):
        raise Io(f"{folder}: is in the home itself; name a folder outside of it")
    address, log_file = store_address_of(home), daemon_config(home.config()).log_file
    refuse_lost_file(home.store)
    store = "none" if address is None else str(address)
    with _locked(folder):
        made = folder / _UNFINISHED
        shutil.rmtree(made, ignore_errors=True)
        with _problems_of(made), contextlib.ExitStack() as stack:
            made.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            if (
                address is None and home.store.exists()
            ):  # first: each of its charges has its row in the copied log
                upkeep.back_up(home.store, made / home.store.name)
                store = "copied"
            for source in _files(home.path):
                if source.name != log_file:
                    _copy(source, made / source.name)
            os.sync()
            before = _backups(folder)
            done = made.rename(folder / _now())
            os.sync()
            for each in before:
                shutil.rmtree(each)
    sizes = [path.stat().st_size for path in done.rglob("*") if path.is_file()]
    report = {"home": str(home.path), "backup": str(done), "store": store}
    return {**report, "files": len(sizes), "bytes": sum(sizes)}


def _now() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"


def _files(home: Path) -> list[Path]:
    """What is copied as it is."""
    return sorted(
        path
        for path in home.iterdir()
        if not path.name.startswith((*_OWN, _REPLACED, ".")) and _is_copied(path)
    )


def _is_copied(path: Path) -> bool:
    """Sockets are not, nor are links to folders."""
    return path.is_file() or (path.is_dir() and not path.is_symlink())


def _backups(folder: Path) -> list[Path]:
    """The complete ones, the oldest first: two after a crash."""
    return sorted(path for path in folder.iterdir() if _BACKUP.fullmatch(path.name))


def _copy(source: Path, target: Path) -> None:
    """A file or a folder. Files of the audit log may be pruned meanwhile."""
    if source.is_dir():
        target.mkdir(mode=0o700)
        shutil.copystat(source, target)
        for each in sorted(source.iterdir()):
            if _is_copied(each):
                _copy(each, target / each.name)
    else:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(source, target)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """For one backup at a time."""
    with _problems_of(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Io(f"{folder}: another backup to it is running") from None
    finally:
        os.close(opened)


@contextlib.contextmanager
def _problems_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise Io(f"{where}: cannot be copied: {error.strerror or error}") from None


# ── Restoration ──────────────────────────────────────────────────────────────────────────────────


def _restored(folder: Path, path: Path) -> dict[str, Any]:
    from anaphora.daemon.home import Home, HomeLock
    from anaphora.daemon.store.schema import connect_to_read

    found = _backups(folder) if folder.is_dir() else []
    if not found:
        raise Io(f"{folder}: holds no backup; make one with: anaphora backup {folder}")
    source, home = found[-1], Home(path.resolve())
    if (source / home.store.name).exists():
        connect_to_read(source / home.store.name).close()  # raises for another version
    with _problems_of(home.path):
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = HomeLock.acquire(home.lock)
        try:
            replaced = _replace(
                home.path, source, keep=(home.lock.name, home.settlements_journal.name)
            )
        finally:
            lock.release()
    earlier = None if replaced is None else str(replaced)
    return {"home": str(home.path), "backup": str(source), "replaced": earlier}


def _replace(home: Path, source: Path, keep: tuple[str, ...]) -> Path | None:
    """Moves the files of a home aside and copies those of a backup into it. llm.yaml comes last:
    without it, a home that is not complete is no home."""
    copied = home / _UNFINISHED
    shutil.rmtree(copied, ignore_errors=True)
    _copy(source, copied)
    os.sync()
    aside = home / f"{_REPLACED}{_now()}"
    present = [
        path
        for path in home.iterdir()
        if path.name not in (*keep, _UNFINISHED) and not path.name.startswith(_REPLACED)
    ]
    if present:
        aside.mkdir(mode=0o700)
        for path in sorted(present, key=lambda one: one.name != "llm.yaml"):
            path.rename(aside / path.name)
    for path in sorted(copied.iterdir(), key=lambda one: one.name == "llm.yaml"):
        path.rename(home / path.name)
    copied.rmdir()
    os.sync()
    return aside if present else None
