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
            self.fail(f"{value!r} {self._wrong(value, known)}", param, ctx)
        return value

    def _wrong(self, value: str, known: dict[str, str]) -> str:
        from difflib import get_close_matches

        from anaphora.wire import WIRES

        wires = ", ".join(sorted(WIRES))
        if not self._dialects:
            return f"is not a wire; there are {wires}"
        near = get_close_matches(value, known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        return f"is neither a wire ({wires}) nor a provider that `anaphora wires` lists.{meant}"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        known = self._known()
        names = [name for name in sorted(known) if name.startswith(incomplete)]
        return [CompletionItem(name, help=known[name]) for name in names]
