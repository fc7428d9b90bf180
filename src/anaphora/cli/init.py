"""`anaphora init`"""

from __future__ import annotations

from pathlib import Path

import click

from .terminal import print_report


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print what was created as JSON.")
def command(folder: Path, as_json: bool) -> None:
    """Create the home folder of a daemon.

    Writes into DIR a commented llm.yaml (providers), a commented extensions.yaml (what each app may
    do), and an empty folder for keys, all readable by you only. What is there already stays as it
    is.

    Then store a key and start the daemon; with `anaphora serve --emulate` no key is needed.
    """
    from anaphora.daemon.home import init

    created = init(folder)
    lines: list[str] = [f"created {path}" for path in created] or ["everything is there already"]
    lines += [
        "",
        "next:",
        f"  anaphora secrets set ANTHROPIC_API_KEY --home {folder}",
        f"  anaphora apps add my-app --home {folder}",
        f"  anaphora serve --home {folder}    (with --emulate no key is needed)",
    ]
    report = {"home": str(folder.resolve()), "created": [str(path) for path in created]}
    print_report(report, lines, as_json=as_json)
