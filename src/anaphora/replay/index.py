"""INDEX.toml: the path and the hash of every fixture of a folder.

    schema_version = 1
    replay_toml = "7d02…"

    [[fixture]]
    path = "3f9a….json"
    blake3 = "c81e…"
    key = "3f9a…"
    number = 0
    exact = "09ab…"

`replay_toml` is the hash of the match rules in the folder; it is left out if there are none.
Entries are appended; the index is rewritten only if fixtures are removed or the rules change.
`key`, `number` and `exact` may be missing, as in an index written by hand; opening then reads them
from the fixtures. An index in exactly the form above is read by a pattern, which is much faster
than tomllib; any other form by tomllib.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec

from anaphora.errors import FixtureIntegrityFailed, OtherSchema

from .fixture import SCHEMA_VERSION

INDEX = "INDEX.toml"
SIGNATURE = "INDEX.toml.sig"
RULES = "replay.toml"
HEADER = b"schema_version = %d\n\n" % SCHEMA_VERSION
ENTRY_START = b"[[fixture]]\n"

#: Files that belong to a folder and are not fixtures; names that begin with a dot are ignored.
BESIDE = frozenset((INDEX, SIGNATURE, RULES, "README.md"))

_PAGE = 4096
_HEADER = re.compile(re.escape(HEADER[:-1]) + rb'(?:replay_toml = "([0-9a-f]{64})"\n)?\n')
_HASH = re.compile(r"[0-9a-f]{64}")
#: The names that `file_name` gives.
OWN_NAME = re.compile(r"[0-9a-f]{32}-(?:0|[1-9][0-9]*)\.json")
_ENTRY = re.compile(
    rb'\[\[fixture\]\]\npath = "([^"\\\x00-\x1f\x7f]+)"\nblake3 = "([0-9a-f]{64})"\n'
    rb'key = "([0-9a-f]{64})"\nnumber = (0|[1-9][0-9]{0,9})\nexact = "([0-9a-f]{64}|)"\n+'
)
#: Characters that some file system forbids in names, or reads as a separator.
_FOREIGN = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')


class FixtureEntry(msgspec.Struct, frozen=True):
    """A line of the index."""

    path: str
    """Relative to the folder."""
    blake3: str
    """Of the file, in lower-case hex."""
    key: str = ""
    """Empty if the index does not name it."""
    number: int = 0
    exact: str = ""


def file_name(key: str, number: int) -> str:
    return f"{key[:32]}-{number}.json"


def written(entry: FixtureEntry) -> bytes:
    return (
        f'[[fixture]]\npath = "{entry.path}"\nblake3 = "{entry.blake3}"\n'
        f'key = "{entry.key}"\nnumber = {entry.number}\nexact = "{entry.exact}"\n\n'
    ).encode()


def appended(entries: Iterable[FixtureEntry], size: int) -> bytes:
    """The bytes to append to an index of this size. No entry crosses a page of the file: a process
    that is killed while it writes leaves whole entries."""
    made = bytearray()
    for entry in entries:
        text = written(entry)
        left = _PAGE - (size + len(made)) % _PAGE
        if left < len(text) <= _PAGE:
            made += b"\n" * left
        made += text
    return bytes(made)


def whole(entries: Iterable[FixtureEntry], rules: str = "") -> bytes:
    """`rules` is the hash of replay.toml; empty: there is none."""
    header = HEADER
    if rules:
        header = HEADER[:-1] + f'replay_toml = "{rules}"\n\n'.encode()
    return header + appended(entries, len(header))


def read_own_form(data: bytes) -> list[FixtureEntry] | None:
    """None if the index has another form."""
    header = _HEADER.match(data)
    return None if header is None else read_entries(data, header.end())


def listed_rules(data: bytes, place: str) -> str:
    """The hash of replay.toml in an index that was read; empty if it lists none."""
    if (header := _HEADER.match(data)) is not None:
        return (header[1] or b"").decode()
    hash = tomllib.loads(data.decode()).get("replay_toml", "")
    if not isinstance(hash, str) or not (hash == "" or _HASH.fullmatch(hash)):
        raise FixtureIntegrityFailed(f"{place}: replay_toml must be 64 lower-case hex digits")
    return hash


def read_entries(data: bytes, start: int = 0) -> list[FixtureEntry] | None:
    """The entries from an offset on, in the form that `appended` writes."""
    begin = start
    while data.startswith(b"\n", begin):
        begin += 1
    entries = []
    for found in _ENTRY.finditer(data, begin):
        if found.start() != begin:
            return None
        begin = found.end()
        path, hash, key, number, exact = found.groups()
        try:
            entries.append(
                FixtureEntry(
                    path.decode(), hash.decode(), key.decode(), int(number), exact.decode()
                )
            )
        except UnicodeDecodeError:
            return None
    return entries if begin == len(data) else None


def read_toml(data: bytes, place: str) -> list[FixtureEntry]:
    """The entries; raises `OtherSchema`, and `FixtureIntegrityFailed` for an invalid index."""
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise FixtureIntegrityFailed(f"{place}: not TOML: {problem}") from None
    version = table.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version < 1:
        raise FixtureIntegrityFailed(f"{place}: schema_version must be a number, 1 or more")
    if version > SCHEMA_VERSION:
        raise OtherSchema(place, version=version, known=SCHEMA_VERSION)
    rows = table.get("fixture", [])
    if not isinstance(rows, list):
        raise FixtureIntegrityFailed(f"{place}: fixtures must be written as [[fixture]]")
    return [_entry(row, f"{place}: fixture {count}") for count, row in enumerate(rows, 1)]


def _entry(row: Any, place: str) -> FixtureEntry:
    if not isinstance(row, dict):
        raise FixtureIntegrityFailed(f"{place}: must be a table")
    path, hash = row.get("path"), row.get("blake3")
    key, number, exact = row.get("key", ""), row.get("number", 0), row.get("exact", "")
    if not isinstance(path, str) or not path:
        raise FixtureIntegrityFailed(f"{place}: has no path")
    if not isinstance(hash, str) or not _HASH.fullmatch(hash):
        raise FixtureIntegrityFailed(f"{place}: blake3 must be 64 lower-case hex digits: {path}")
    for name, digest in (("key", key), ("exact", exact)):
        if not isinstance(digest, str) or not (digest == "" or _HASH.fullmatch(digest)):
            raise FixtureIntegrityFailed(
                f"{place}: {name} must be 64 lower-case hex digits: {path}"
            )
    if type(number) is not int or number < 0:
        raise FixtureIntegrityFailed(f"{place}: number must be 0 or more: {path}")
    return FixtureEntry(path, hash, key, number, exact)


def path_problem(path: str) -> str:
    """Why the path cannot be that of a fixture; empty if it can."""
    if OWN_NAME.fullmatch(path):
        return ""
    if path.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", path):
        return "the path is absolute; it must be relative to the folder"
    if ".." in re.split(r"[/\\]", path):
        return "the path leaves the folder"
    if _FOREIGN.search(path):
        return "the path has a character that is not allowed in names"
    for name in path.split("/"):
        if not name or name.startswith(".") or name.endswith((".", " ")):
            return "the path has an empty or hidden step"
    if not path.endswith(".json") or path in BESIDE:
        return "the name of a fixture ends with .json"
    return ""


def folded(path: str) -> str:
    """Equal for paths that some file system treats as one file."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
