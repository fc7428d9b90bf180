"""`anaphora lint`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._wires import WireName
from .models import ProviderName

if TYPE_CHECKING:
    from anaphora.analysis.lint import Finding, Severity


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--samples", is_flag=True, help="FILES are samples of one prompt: what differs?")
@click.option(
    "--severity",
    type=click.Choice(("note", "warning", "error")),
    help="From when on it counts; warning when left out.",
)
@click.option(
    "--from",
    "origin",
    type=WireName(dialects=True),
    help="The wire the requests are on, or whose dialect; found out when left out.",
)
@click.option("--provider", type=ProviderName(), help="Where the prompts go.")
@click.option("--model", help="The model they are for: texts do not say.")
@click.option("--path", default="", help="Where they were sent, for a wire that says things there.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Instead of .anaphora-lint.toml in the current folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--sarif", "as_sarif", is_flag=True, help="Print them as SARIF 2.1.0.")
def command(
    files: tuple[Path, ...],
    samples: bool,
    severity: Severity | None,
    origin: str | None,
    provider: str | None,
    model: str | None,
    path: str,
    config: Path | None,
    as_json: bool,
    as_sarif: bool,
) -> None:
    """Find what will break a cached prefix, before it does.

    FILES are requests (JSON bodies of any wire; a line each in .jsonl) or prompts as plain text.
    In tools, system prompts and texts it looks for dates, clocks, UUIDs, nonces, counters,
    temporary paths and host names; in requests also for markers that cache nothing, and for
    prompts too short to be cached. With --samples: for whatever differs, lists in another order,
    cache keys that are new each time. Each finding says what it costs in a thousand calls.

    Suppress with a reason: `anaphora: ignore[rule] reason` in a text, or [[ignore]] entries with
    rule, reason, and file or path in .anaphora-lint.toml.

    What cannot be read is reported on standard error, and the rest is checked. Exit code 1 when
    something at or above the severity was found or something could not be read, 2 when nothing
    could be read.
    """
    from anaphora.analysis.lint import at_least

    from ._explain.calls import Asked
    from ._lint import config as configs
    from ._lint.prompts import Linter, load

    if as_json and as_sarif:
        raise click.UsageError("--json or --sarif, not both")
    known = configs.load(config)
    asked = Asked(
        origin=origin,
        provider=provider or known.provider,
        model=model or known.model,
        path=path,
    )
    threshold: Severity = severity or known.severity or "warning"  # type: ignore[assignment]
    linter = Linter(asked, known)
    prompts = load(files, asked)
    for problem in prompts.problems:
        click.echo(f"anaphora: {problem}", err=True)
    if not (prompts.requests or prompts.texts):
        click.echo("anaphora: nothing to check", err=True)
        raise click.exceptions.Exit(2)
    findings = linter.findings(prompts, samples=samples)
    if as_json or as_sarif:
        _print(findings, linter.unpriced, as_sarif)
    else:
        from ._lint.show import page

        page(findings, threshold, unpriced=linter.unpriced)
    found = any(one.suppressed is None and at_least(one, threshold) for one in findings)
    if found or prompts.problems:
        raise click.exceptions.Exit(1)


def _print(findings: list[Finding], unpriced: tuple[str, ...], as_sarif: bool) -> None:
    from importlib.metadata import version

    import msgspec

    from anaphora.analysis.lint import sarif

    told: Any = {"findings": findings, "unpriced": unpriced}
    if as_sarif:
        told = sarif(findings, version("anaphora"))
    click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
