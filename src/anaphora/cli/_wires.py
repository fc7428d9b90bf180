"""Names of wires and dialects on the command line: known, completed, and loaded only when one is
given."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


class WireName(click.ParamType[str]):
    """A wire; with `dialects`, also a provider that speaks one."""

    name = "wire"

    def __init__(self, *, dialects: bool = False) -> None:
        self._dialects = dialects

    def _known(self) -> dict[str, str]:
        from anaphora import wire

        return wire.names() if self._dialects else dict(wire.WIRES)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        known = self._known()
        if value not in known:
            there = ", ".join(sorted(known))
            what = "neither a wire nor a provider here" if self._dialects else "not a wire"
            self.fail(f"{value!r} is {what}; there are {there}", param, ctx)
        return value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        known = self._known()
        names = [name for name in sorted(known) if name.startswith(incomplete)]
        return [CompletionItem(name, help=known[name]) for name in names]
