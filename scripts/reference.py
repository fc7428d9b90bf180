"""Writes docs/reference/*.md from the code: library, commands, configuration, protocols, catalog
and errors.

    python scripts/reference.py            rewrites the pages
    python scripts/reference.py --check    fails if a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts")]

from reference_pages import all_pages  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
COMMAND = "python scripts/reference.py"


def outdated(written: dict[str, str]) -> list[str]:
    """The pages that differ from the code, are missing, or are no longer made."""
    found = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    return sorted(name for name in {*written, *found} if written.get(name) != found.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    written = all_pages()
    names = outdated(written)
    if parser.parse_args().check:
        for name in names:
            print(
                f"docs/reference/{name} is out of date; to rewrite it: {COMMAND}", file=sys.stderr
            )
        return 1 if names else 0
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        if name in written:
            (FOLDER / name).write_text(written[name])
        else:
            (FOLDER / name).unlink()
        print(f"reference: docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
