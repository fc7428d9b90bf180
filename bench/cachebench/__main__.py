"""Compare Anaphora with its peers: dollars, cache reads, CPU.

    python bench/cachebench [--quick] [--only peers,gateways,engine,ourselves] [--results FILE]

`make cachebench` runs it, `make bench-peers` installs the peers. The last line is one JSON object.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The modules of the other benchmarks, and of the environments that the peers are installed in.
sys.path[:0] = [str(ROOT / folder) for folder in ("bench", "soak")]

if __name__ == "__main__":
    from cachebench.runner import main

    main()
