"""Wire names on the command line: known, completed, and loaded only when one is given."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


class WireName(click.ParamType[str]):
    name = "wire"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from anaphora.wire import WIRES

        if value not in WIRES:
            self.fail(f"{value!r} is not a wire; there are {', '.join(sorted(WIRES))}", param, ctx)
        return value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from anaphora.wire import WIRES

        names = [name for name in sorted(WIRES) if name.startswith(incomplete)]
        return [CompletionItem(name, help=WIRES[name]) for name in names]
