"""`anaphora demo`"""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(as_json: bool) -> None:
    """Watch a prompt keep its beginning, and lose it once.

    A small agent fixes a bug in 12 turns. Each is really rendered, planned and fingerprinted for
    Anthropic's API, from data that comes with the package: no key, no network, and the same output
    every time. In turn 9 a clock gets into the system prompt.
    """
    from ._demo.turns import play

    report = play()
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
        return
    from ._console import Terminal
    from ._demo.show import page

    terminal = Terminal()
    terminal.page(page(report, terminal.width))
