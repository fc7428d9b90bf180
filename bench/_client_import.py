"""What importing costs, in CPU, each time in an interpreter of its own.

Bytecode is compiled: into a folder of our own, because some machines keep Python from writing any.
The clock runs in the interpreter itself, from before the import to after it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

_TIMED = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def _once(module: str, folder: str) -> float:
    env = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-c", _TIMED.format(module)]
    return float(subprocess.run(words, env=env, capture_output=True, check=True).stdout)


def importing(module: str, other: str, runs: int) -> tuple[float, float, float]:
    """Seconds of both, and the first over the second: medians of runs that take turns."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (module, other):
            _once(name, folder)  # writes the bytecode
        times = [(_once(module, folder), _once(other, folder)) for _ in range(runs)]
    one, two = (statistics.median(each) for each in zip(*times, strict=True))
    return one, two, statistics.median(a / b for a, b in times)


if __name__ == "__main__":
    print(importing("anaphora", "msgspec", 25))
