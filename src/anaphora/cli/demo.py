"""`anaphora demo`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ._demo.places import Place

_NEEDED = {"granian": "emulator", "starlette": "emulator"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option("--providers", default="", help="Only these, with commas between them.")
@click.option("--no-engine", is_flag=True, help="Leave llama.cpp's server out.")
def command(as_json: bool, providers: str, no_engine: bool) -> None:
    """Take the tour: no key, no network, under a minute.

    An emulator of every provider is started on this machine, and an agent fixes a bug in 20 turns
    at each of them, its prompt laid out as usual and by Anaphora: two bills. Then one byte of the
    prompt is changed, and found. Last, the same prompt goes to llama.cpp's own server, cold and
    warm, where that is installed.
    """
    from importlib.util import find_spec

    places = _places(providers)
    for package, extra in _NEEDED.items():
        if find_spec(package) is None:
            raise click.ClickException(
                f"the demo needs {package}; install it with: pip install 'anaphora[{extra}]'"
            )
    from ._demo.play import play
    from ._demo.stage import Silent, Stage

    report = play(places, Silent() if as_json else Stage(), engine=not no_engine)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))


def _places(names: str) -> tuple[Place, ...]:
    from anaphora.errors import InvalidRequest

    from ._demo.places import PLACES

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {place.provider for place in PLACES}
    for name in wanted:
        if name not in known:
            raise InvalidRequest(
                f"{name!r} is none of {', '.join(sorted(known))}", path="--providers"
            )
    return tuple(place for place in PLACES if not wanted or place.provider in wanted)
