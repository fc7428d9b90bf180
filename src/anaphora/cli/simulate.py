"""`anaphora simulate`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from anaphora.analysis.trace import Predicted
    from anaphora.analysis.trace.sources import Source

    from ._simulate.files import Format
    from ._simulate.report import Report

_FORMATS = ("trace", "claude_code", "codex", "requests")

#: Calls from which on one may want to see that something happens.
_LONG = 500


class ModelName(click.ParamType[tuple[str, str]]):
    """PROVIDER/MODEL, both known."""

    name = "provider/model"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        from anaphora.analysis.trace import provider_named, unplayable

        if isinstance(value, tuple):
            return value
        name, _, model = value.partition("/")
        if not model:
            self.fail(f"{value!r} is not of the form provider/model", param, ctx)
        if (why := unplayable(name, model)) is not None:
            self.fail(f"{why}; `anaphora models` lists what is known", param, ctx)
        return provider_named(name) or name, model

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from anaphora import catalog

        names = (f"{profile.provider}/{profile.id}" for profile in catalog.models())
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="All files of a folder, besides FILES.",
)
@click.option(
    "--as", "elsewhere", type=ModelName(), help="Play it there instead: what would it have cost?"
)
@click.option("--format", "format_", type=click.Choice(_FORMATS), help="When it is not recognised.")
@click.option("--json", "as_json", is_flag=True, help="Print a row for every call, and the sums.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it as an SVG.")
@click.option("--strict", is_flag=True, help="Refuse input that would be skipped.")
def command(
    files: tuple[Path, ...],
    traces: Path | None,
    elsewhere: tuple[str, str] | None,
    format_: Format | None,
    as_json: bool,
    plot: Path | None,
    strict: bool,
) -> None:
    """Hold predicted cache use against real bills.

    FILES (JSON lines, gzipped or not; a folder stands for all that is in it) are recorded traces,
    sessions of Claude Code (~/.claude/projects) or Codex (~/.codex/sessions), or request logs with
    the bodies of requests and answers. Every call is predicted from the calls before it, and then
    held against what was billed: read, written, dollars; and the most likely reason for each
    difference. With --as the same calls are played on another provider and model.

    Input that cannot be right is named with file and line, skipped and counted; --strict refuses
    it with exit code 2.
    """
    from ._simulate import show

    places = [*files, *([traces] if traces is not None else [])]
    if not places:
        raise click.UsageError("name a file, or a folder with --traces")
    report = _simulate(places, format_, elsewhere, strict)
    if plot is not None:
        from ._simulate.plot import draw

        plot.write_text(draw(report), encoding="utf-8")
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        show.page(report)


def _simulate(
    places: list[Path],
    format_: Format | None,
    elsewhere: tuple[str, str] | None,
    strict: bool,
) -> Report:
    import datetime

    from ._simulate.gathering import gather, refuse
    from ._simulate.money import Till
    from ._simulate.report import report_of, row_of

    found, problems = gather(places, format_)
    if strict:
        refuse(problems)
    till = Till(datetime.datetime.now(datetime.UTC))
    sources = {source.trace.id: source for source in found}
    rows = [
        row_of(call, sources[call.trace], till, moved=elsewhere is not None)
        for call in _played(found, elsewhere)
    ]
    return report_of(rows, problems, till, None if elsewhere is None else "/".join(elsewhere))


def _played(found: list[Source], elsewhere: tuple[str, str] | None) -> Iterator[Predicted]:
    """A prediction for every call, with a bar on a terminal when it takes long."""
    from anaphora.analysis.trace import Predictor

    from ._simulate.progress import tracked

    calls = sum(len(source.trace.calls) for source in found)
    played = Predictor(elsewhere=elsewhere).play(source.trace for source in found)
    return tracked(played, "playing", total=calls, long=_LONG)
