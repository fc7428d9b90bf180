"""What tests of this folder import beside the package: each other, and the servers of benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bench")]
