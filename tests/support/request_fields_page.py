"""docs/request-fields.md, generated from the tables of what requests contain."""

from __future__ import annotations

from collections.abc import Iterator

from anaphora import wire
from anaphora.daemon.access.handles import NOT_LENT
from anaphora.wire.tables import BlockType, Effect, RequestTable, request_table

INTRO = """\
# Request fields

What each field of a request does, by wire, and whether a grant needs an entry for it. The daemon's
checks, the emulator's refusals and this page are made from the same tables
(`src/anaphora/wire/*/fields.py`).

A field that *needs `allow`* is refused unless the app's grant lists it:
`allow: [fields: [NAME]]`, see [extensions](extensions.md). So is any field that is not on this page,
and any member of an object that is not listed with it. Provider dialects add the fields in which
their providers take parameters.

To regenerate this page, run `tests/laws/test_readers.py` with `ANAPHORA_UPDATE_DOCS=1`.
"""

#: What a grant says about fields that do this.
_CHECKED = {
    Effect.MONEY: "counted in the bound of the cost, and held to the grant's limits",
    Effect.TOOL: "held to the grant's `tools`; server tools and MCP servers need `allow`",
    Effect.STORED: "may name the app's own objects only; keeping answers needs `allow`",
    Effect.ASK: "needs `allow`",
}
_NOT_LENT = "[not passed on](reference/http.md#not-passed-on)"


def page() -> str:
    return "\n".join([INTRO, *(line for name in wire.WIRES for line in _wire(name)), ""])


def _wire(name: str) -> Iterator[str]:
    table = request_table(name)
    yield f"## {wire.WIRES[name]}"
    yield ""
    yield "| field | what it does | known members | grant |"
    yield "|---|---|---|---|"
    for field in sorted(table.fields.values(), key=lambda each: each.name.lower()):
        members = ", ".join(f"`{each}`" for each in sorted(field.members or ()))
        what = "" if "." in field.name else field.effect.value
        grant = "" if "." in field.name else _CHECKED.get(field.effect, "")
        grant = _NOT_LENT if field.name in NOT_LENT else grant
        beta = " (beta)" if field.beta else ""
        yield f"| `{field.name}`{beta} | {what} | {members} | {grant} |"
    yield ""
    yield from _blocks(table)


def _blocks(table: RequestTable) -> Iterator[str]:
    if not table.blocks:
        return
    yield "| block | marker | medium | blocks inside |"
    yield "|---|---|---|---|"
    for kind, row in sorted(table.blocks.items()):
        yield f"| `{kind}` | {'yes' if row.markable else ''} | {row.medium or ''} | {_inside(row)} |"
    yield ""


def _inside(row: BlockType) -> str:
    return ", ".join(f"`{place}`" for place in row.inside)
