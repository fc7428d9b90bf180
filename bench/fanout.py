"""What a fan-out costs in dollars and time: `client.map`, all at once, one after the other.

    python bench/fanout.py [--calls 2,20,200] [--tokens 10000]

The calls share a system prompt. They go to the emulator's engine on a virtual clock, with the
emulator's bills: the first byte of a response comes after 1 second, its end after 6, and an entry
can be read when the provider's rules say so; the client waits for the visibility delay, too.
"whole" is the number of calls that paid for the whole prompt. The last line is one JSON object:
dollars and time of `client.map` in multiples of sending all at once, as the mean of all providers
at the second number of calls; and the same for each provider and number.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import virtual_time
from support.paced_engine import PacedTransport

from anaphora import AsyncClient
from anaphora.emulator.engine import Engine

FIRST, WHOLE = 1.0, 6.0
#: A provider's wire and model.
PROVIDERS = {
    "anthropic": ("anthropic", "claude-sonnet-5-5"),
    "openai": ("openai_responses", "gpt-5.6"),
    "gemini": ("gemini", "gemini-3.1-pro-preview"),
}
WAYS = ("map", "at once", "one by one")


async def run(provider: str, way: str, count: int, tokens: int) -> tuple[Decimal, float, int]:
    """Dollars, seconds, and how many calls paid for the whole prompt."""
    wire, model = PROVIDERS[provider]
    settings = {
        "wire": wire,
        "base_url": "http://emulator.invalid",
        "key": {"env": "KEY"},
        "model": model,
        "timeouts": {"total": 3600},
    }
    engine = Engine()
    transport = PacedTransport(engine, first=FIRST, whole=WHOLE)
    common: dict[str, Any] = {
        "system": "Answer in one short line. " * (tokens // 6),
        "max_tokens": 64,
    }
    prompts = [f"What is {number}?" for number in range(count)]
    begun = virtual_time.clock()
    async with AsyncClient.from_config(
        {"providers": {provider: settings}}, environ={"KEY": "any"}, transport=transport
    ) as client:
        if way == "one by one":
            for prompt in prompts:
                await client.complete(prompt, **common)
        else:
            warm: Any = "auto" if way == "map" else "off"
            result = await client.map(prompts, concurrency=count, warm=warm, **common)
            assert not result.errors, result.errors[0].error
    seconds = virtual_time.clock() - begun
    bills = [entry for entry in engine.journal.entries() if "read" in entry]
    whole = sum(max(bill["uncached"], *bill["written"].values(), 0) > tokens // 2 for bill in bills)
    return sum((Decimal(bill["cost_usd"]) for bill in bills), Decimal(0)), seconds, whole


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a fan-out.")
    parser.add_argument("--calls", default="2,20,200")
    parser.add_argument("--tokens", type=int, default=10_000)
    options = parser.parse_args()
    counts = [int(count) for count in options.calls.split(",")]
    print(
        f"{'':12}{'calls':>6}  " + "".join(f"{way + ', $':>14}{'s':>8}{'whole':>7}" for way in WAYS)
    )
    ratios: dict[str, float] = {}
    products = {"dollars": list[float](), "wall": list[float]()}
    for provider in PROVIDERS:
        for count in counts:
            found = {
                way: virtual_time.run(run(provider, way, count, options.tokens)) for way in WAYS
            }
            cells = "".join(
                f"{cost:>14.4f}{seconds:>8.1f}{whole:>7}" for cost, seconds, whole in found.values()
            )
            print(f"{provider:12}{count:>6}  {cells}")
            dollars = float(found["map"][0] / found["at once"][0])
            wall = found["map"][1] / found["at once"][1]
            ratios[f"{provider}_{count}_dollars"] = round(dollars, 3)
            ratios[f"{provider}_{count}_wall"] = round(wall, 2)
            if count == counts[min(1, len(counts) - 1)]:
                products["dollars"].append(dollars)
                products["wall"].append(wall)
    means = {name: math.prod(values) ** (1 / len(values)) for name, values in products.items()}
    result = {
        "dollars_vs_all_at_once": round(means["dollars"], 3),
        "wall_vs_all_at_once": round(means["wall"], 2),
    }
    print(json.dumps(result | ratios))


if __name__ == "__main__":
    main()
