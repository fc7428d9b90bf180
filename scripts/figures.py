"""Write the results of cachebench into README.md and the pages of docs, and draw them.

    python scripts/figures.py [--check] [--results docs/benchmarks/results.json]

Replaces what stands between `<!-- figures: NAME -->` and `<!-- /figures -->`: a single figure
within a line, or a table in a paragraph of its own. Also writes docs/benchmarks/report.html, the
results with charts, and docs/images/conversation-light.svg and -dark.svg. `--check` writes nothing,
names what differs from the results file, and ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from figure_charts import pictures, report
from figure_tables import ROOT, Json, figures

RESULTS = ROOT / "docs" / "benchmarks" / "results.json"
REPORT = ROOT / "docs" / "benchmarks" / "report.html"
IMAGES = ROOT / "docs" / "images"
_MARKED = re.compile(r"<!-- figures: ([\w-]+) -->(.*?)<!-- /figures -->", re.DOTALL)
#: Of the report: its style, the policy that names the style's hash, and the version.
_FRAME = re.compile(r"<style>.*?</style>|<footer>.*?</footer>|<meta http-equiv[^>]*>", re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_figures(text: str, found: dict[str, str], where: str) -> str:
    """The text with the figures between its markers; an unknown name is an error."""

    def written(match: re.Match[str]) -> str:
        name = match[1]
        if name not in found:
            known = ", ".join(sorted(found))
            raise SystemExit(f"{where}: unknown figure {name!r}; known: {known}")
        value = found[name]
        # A table, a list or a paragraph that had lines of its own.
        block = "\n" in value or "\n" in match[2] or value.startswith(("|", "-"))
        inside = f"\n\n{value}\n\n" if block else value
        return f"<!-- figures: {name} -->{inside}<!-- /figures -->"

    return _MARKED.sub(written, text)


def files(results: Json) -> dict[Path, str]:
    """All files that hold figures, with the text that they are to have."""
    found = figures(results)
    wanted = {}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if _MARKED.search(text):
            wanted[page] = with_figures(text, found, str(page.relative_to(ROOT)))
    wanted[REPORT] = report(results)
    for theme, drawn in pictures(results).items():
        wanted[IMAGES / f"conversation-{theme}.svg"] = drawn
    return wanted


def same(path: Path, wanted: str) -> bool:
    """Whether a file has the text; in the report, style and version may be older ones."""
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        text, wanted = _FRAME.sub("", text), _FRAME.sub("", wanted)
    return text == wanted


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="a results file of cachebench"
    )
    options = parser.parse_args(arguments)
    wanted = files(json.loads(options.results.read_text(encoding="utf-8")))
    differing = [path for path, text in wanted.items() if not same(path, text)]
    for path in differing:
        name = path.relative_to(ROOT)
        if options.check:
            print(f"{name}: differs from {options.results.name}; run python scripts/figures.py")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {name}")
    return int(options.check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
