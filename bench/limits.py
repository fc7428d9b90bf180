"""What the client-side rate limits cost a call, by the number of calls in the last minute.

    python bench/limits.py [--calls N]

"open": the limits let the call start; it is settled with another number of tokens than it
reserved. "full": the limits are used up; the call gets its place in the queue and gives up. The
time is an argument of the limiter, so nothing sleeps. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time

from anaphora.client.config import LimitsConfig
from anaphora.client.limits import Limiter
from anaphora.values import Usage

SIZES = (100, 1_000, 10_000)
BILLED = Usage(uncached=90)


def cost(recent: int, calls: int, *, full: bool) -> float:
    """Microseconds of CPU a call, with so many calls in the last minute."""
    limiter = Limiter(LimitsConfig(requests_per_minute=recent if full else 2 * recent))
    lane = limiter.lane("model")
    now, step = 1000.0, 60.0 / recent
    for _ in range(recent):
        now += step
        limiter.settle(limiter.reserve(lane, 100, now), BILLED, now)
    now -= step / 2
    begun = time.process_time()
    for _ in range(calls):
        call = limiter.reserve(lane, 100, now)
        assert (call.state == "waiting") is full
        if full:
            limiter.next_at(now)
            limiter.cancel(call, now)
        else:
            limiter.settle(call, BILLED, now)
            now += step
    return (time.process_time() - begun) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of rate limits.")
    parser.add_argument("--calls", type=int, default=3_000)
    calls = parser.parse_args().calls
    result: dict[str, float] = {}
    print(f"{'calls in the last minute':>24} {'open, µs':>10} {'full, µs':>10}")
    for recent in SIZES:
        for name in ("open", "full"):
            least = min(cost(recent, calls, full=name == "full") for _ in range(3))
            result[f"{name}_{recent}_us"] = round(least, 2)
        times = result[f"open_{recent}_us"], result[f"full_{recent}_us"]
        print(f"{recent:>24,} {times[0]:>10} {times[1]:>10}")
    for name in ("open", "full"):
        ratio = result[f"{name}_{SIZES[-1]}_us"] / result[f"{name}_{SIZES[0]}_us"]
        result[f"{name}_ratio"] = round(ratio, 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
