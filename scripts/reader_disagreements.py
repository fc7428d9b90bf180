"""Counts the bodies that two readers of requests see differently.

    python scripts/reader_disagreements.py [--show 20] [WIRE ...]

The last line is JSON: `reader_disagreements`, `bodies`, and both by wire. The law is in
tests/support/judge.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.judge import disagreements
from support.rich_bodies import RICH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wires", nargs="*", default=list(RICH))
    parser.add_argument("--show", type=int, default=0, help="Bodies to print for each wire.")
    options = parser.parse_args()
    found: dict[str, dict[str, int]] = {}
    for wire in options.wires:
        seen = list(disagreements(wire))
        differing = [body for body in seen if body.reasons]
        for body in differing[: options.show]:
            print(wire, body.name, *body.reasons, sep="\n    ")
        found[wire] = {"reader_disagreements": len(differing), "bodies": len(seen)}
    sums = {
        key: sum(row[key] for row in found.values()) for key in ("reader_disagreements", "bodies")
    }
    print(json.dumps({**sums, "wires": found}))


if __name__ == "__main__":
    main()
