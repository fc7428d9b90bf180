"""Errors, exit codes, statuses and codes of JSON-RPC."""

from __future__ import annotations

from collections.abc import Iterator

from anaphora import errors
from anaphora.cli import main
from anaphora.daemon.endpoints.errors import wire_error
from anaphora.daemon.rpc import protocol
from anaphora.errors import AnaphoraError, Denied

from . import source
from .markdown import cell, code, fence, page, table

INTRO = """\
Every error of the library, the exit codes of commands, and the statuses and codes with which
the daemon answers."""

STATUSES = """\
What an app gets at a provider-compatible path, in the format of its wire. Errors of providers
keep their status and type. [The daemon](../daemon.md#provider-compatible-endpoints) says more
about each."""

CODES = """\
The `code` and `data.kind` in the error of a [JSON-RPC](../json-rpc.md#errors) response."""

#: One error of each class that has arguments besides its message.
_SAMPLES: tuple[AnaphoraError, ...] = (
    errors.InvalidRequest("", path="messages"),
    errors.Throttled("", wait=1.0),
    errors.Unavailable("", wait=1.0),
    errors.Timeout(1),
    errors.Transport(""),
    errors.Parse(""),
    errors.InvalidConfig(""),
)


def pages() -> dict[str, str]:
    return {"errors.md": page("Errors and exit codes", INTRO, _lines())}


def _lines() -> Iterator[str]:
    tree = source.module_doc("anaphora.errors").split("\n\n")[1]
    yield from ("## Errors of the library", "")
    yield from fence("text", "\n".join(line.removeprefix("    ") for line in tree.splitlines()))
    for name, kind in _classes(AnaphoraError):
        yield f"### {name}"
        yield ""
        yield cell(kind.__doc__ or "")
        yield ""
        fields = [*_attributes(kind)]
        if fields:
            yield f"Attributes: {', '.join(map(code, fields))}."
            yield ""
    yield from ("## Exit codes of commands", "")
    listed = [line.split(maxsplit=1) for line in (main.__doc__ or "").split("\n\n")[1].splitlines()]
    yield from table(("code", ""), [(code(number), cell(what)) for number, what in listed])
    rows = [(code(kind.__name__), code(str(number))) for kind, number in main._CODES]
    yield from table(("error", "exit code"), [*rows, ("any other error", code(str(main.FOUND)))])
    yield from ("## HTTP statuses of the daemon", "", STATUSES, "")
    yield from table(("error", "status", ""), _statuses())
    yield from ("## Codes of JSON-RPC", "", CODES, "")
    yield from table(("code", ""), _constants())
    yield from table(("error", "code", "kind"), _kinds())


def _classes(kind: type[AnaphoraError]) -> Iterator[tuple[str, type[AnaphoraError]]]:
    """A class and its subclasses in this package, in the order of the tree."""
    yield kind.__name__, kind
    for below in kind.__subclasses__():
        if below.__module__ == "anaphora.errors":
            yield from _classes(below)


def _attributes(kind: type[AnaphoraError]) -> Iterator[str]:
    """The attributes that the class sets itself."""
    init = vars(kind).get("__init__")
    if init is not None:
        named = init.__code__.co_names
        yield from (name for name in named if name.isidentifier() and _is_set(kind, name))


def _is_set(kind: type[AnaphoraError], name: str) -> bool:
    return f"self.{name} = " in source.text_of_class("anaphora.errors", kind.__name__)


def _statuses() -> Iterator[tuple[str, str, str]]:
    for name, kind in _classes(Denied):
        yield code(name), str(kind.default_status), cell(_first(kind))  # type: ignore[attr-defined]
    for problem in _SAMPLES:
        status = wire_error(problem, "openai_chat").status
        yield code(type(problem).__name__), str(status), cell(_first(type(problem)))


def _first(kind: type[AnaphoraError]) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0].partition(". ")[0].rstrip(".")


def _constants() -> Iterator[tuple[str, str]]:
    table_text = (protocol.__doc__ or "").partition("    -32700")[2].partition("\n\n")[0]
    for start in (0, 44):  # two columns
        for line in ("    -32700" + table_text).splitlines():
            number, _, what = line[start : start + 44].strip().partition("  ")
            if number.startswith("-"):
                yield code(number), cell(what)


def _kinds() -> Iterator[tuple[str, str, str]]:
    for kind, row in protocol._TABLE.items():
        yield code(kind.__name__), code(str(row.code)), code(row.kind)
