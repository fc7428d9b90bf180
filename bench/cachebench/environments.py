"""The environments of the peers, below .soak as those of `make soak`.

python bench/cachebench/environments.py        installs what is missing (`make bench-peers`)
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "soak"))

from strangers import environment  # noqa: E402 - the path is set above

#: The lists of soak/strangers/requirements that peers are installed from.
ENVIRONMENTS = (
    *("peers", "frameworks", "langchain", "npm-peers"),
    *("gateways", "npm-gateways", "sglang-gateway"),
)


def main() -> int:
    failed = 0
    for name in ENVIRONMENTS:
        print(f"bench-peers: {name}", flush=True)
        try:
            environment.programs(name)
        except environment.Unavailable as problem:
            failed += 1
            print(f"bench-peers: {name}: {problem}", file=sys.stderr, flush=True)
    return 1 if failed == len(ENVIRONMENTS) else 0


if __name__ == "__main__":
    sys.exit(main())
