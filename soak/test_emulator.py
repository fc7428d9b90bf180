"""The emulator's memory over 200,000 requests, four wires, streams and single answers mixed.

Prompts differ from stretch to stretch, so that what is kept for each prompt would show, and the
clock is not moved: nothing is forgotten because it expired. The first half fills what is kept up to
a bound: the caches, the journal and stored answers. Over the second half memory is flat. Prints the
curve.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from _requests import mixed
from _served import child

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "200000"))
STRETCHES = 20
#: How many different prompts there are in a stretch.
DIFFERENT = 2_000
#: What allocators need to breathe, in MB.
FLAT = 12.0


def test_memory_is_flat_over_many_requests() -> None:
    curve = []
    each = REQUESTS // STRETCHES
    with child("emulator") as emulator:
        for stretch in range(STRETCHES):
            result = emulator.load(mixed(DIFFERENT, first=stretch * DIFFERENT), 64, each)
            assert result["statuses"] == {"200": each}
            curve.append(emulator.rss_mb)
            print(
                f"after {each * (stretch + 1):7} requests: {curve[-1]:7.1f} MB"
                f"   {each / result['seconds']:6.0f} a second",
                flush=True,
            )
    growth = curve[-1] - curve[len(curve) // 2 - 1]
    print(json.dumps({"requests": each * STRETCHES, "rss_growth_mb": round(growth, 1)}))
    assert growth < FLAT, "over the second half"
