"""What a call costs its client: ours, a POST by hand, the official SDKs, pydantic-ai, LiteLLM.

    python bench/client.py [--rounds 5] [--calls 60] [--long]

A call has 42 messages, tools and a system prompt, about 40 KB, and is answered by a static server
in another process. All send the same document as far as they let one choose: contents are lists of
parts, as ours are on the wire, and the breakpoints are there (see _client_bodies.py; that it is the
one ours sends is checked before anything is measured). Raw and the SDKs send just that; LiteLLM and
pydantic-ai rewrite a few fields, and pydantic-ai has strings where only the user's content may be a
list. How the JSON is spaced is up to each. The SDKs are also measured with the shortest
equivalent body, with contents as strings; that is shown as "str" and is no headline figure.

Every client is a process of its own, and warm, its bytecode compiled before; they take turns, so
that whatever else the machine does falls on all of them. A figure is the CPU of the client's
process, user and system; ratios are medians of the rounds' ratios, on the same wire, and of several
wires the worst one counts. _client_ours.py lists what ours does in a call. With --long, also the
growth of the client's memory over 100,000 calls (_client_memory.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from _bytecode import compiled
from _client_contest import Contestant, Key, contest, rounds
from _client_import import importing
from _served import child

HERE = Path(__file__).parent
STRANGERS = HERE.parent / "soak" / "strangers" / "environment.py"
WIRES = ("anthropic", "openai_chat", "openai_responses")

#: Who calls on which wire, and how many times fewer calls they make.
OURS = [(who, wire, 1) for wire in WIRES for who in ("raw", "bytes", "one-shot", "session")]
SDKS = [
    ("anthropic SDK", "anthropic", 3),
    ("openai SDK", "openai_chat", 10),
    ("openai SDK", "openai_responses", 20),
]
#: With contents as strings.
PLAIN = [
    ("anthropic SDK, str", "anthropic", 3),
    ("openai SDK, str", "openai_chat", 10),
    ("openai SDK, str", "openai_responses", 20),
]
OTHERS = [
    ("LiteLLM", "anthropic", 10),
    ("LiteLLM", "openai_chat", 15),
    ("pydantic-ai", "anthropic", 20),
    ("pydantic-ai", "openai_chat", 20),
]
GROWTH_TURNS, GROWTH_SESSIONS = 1000, 3
IMPORTS = 19
MEMORY_CALLS = 100_000


def strangers() -> str | None:
    """The interpreter of the environment that LiteLLM and pydantic-ai live in."""
    run = subprocess.run(
        [sys.executable, str(STRANGERS)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        print(f"without pydantic-ai and LiteLLM: {run.stderr.strip()}")
        return None
    return run.stdout.strip()


class Figures:
    """CPU of a call of everybody, in every round."""

    def __init__(self, found: dict[Key, list[float]]) -> None:
        self._found = found

    def cpu(self, who: str, wire: str) -> float:
        return statistics.median(self._found[who, wire])

    def ratio(self, who: str, other: str, wire: str) -> float:
        pairs = zip(self._found[who, wire], self._found[other, wire], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def ratios(self, who: str, other: str) -> list[float]:
        """On every wire that both speak."""
        wires = [wire for caller, wire in self._found if caller == who]
        return [self.ratio(who, other, wire) for wire in wires]

    def least(self, who: str) -> float | None:
        """CPU ratio to a session, at least; None when not installed."""
        return round(min(self.ratios(who, "session")), 2) if self.ratios(who, "session") else None


def table(figures: Figures, contestants: list[Contestant]) -> None:
    for one in contestants:
        ratios = f"{figures.ratio(one.who, 'raw', one.wire):6.2f} of raw"
        if one.who not in ("raw", "bytes", "one-shot", "session"):
            ratios += f"   {figures.ratio(one.who, 'session', one.wire):6.1f} times a session's"
        print(
            f"{one.wire:17} {one.who:18} {figures.cpu(one.who, one.wire):8.0f} µs"
            f"   {one.bytes / 1e3:5.1f} KB {ratios}"
        )


def growth() -> float:
    """A turn late in a conversation over an early one, on the wire where it grows most."""
    worst = 0.0
    for wire in WIRES:
        words = [str(HERE / "_client_growth.py"), wire, str(GROWTH_TURNS), str(GROWTH_SESSIONS)]
        run = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, check=True)
        result = json.loads(run.stdout)
        worst = max(worst, result["growth"])
        print(
            f"{wire:17} turn 10 {result['early']:6.0f} µs   turn {GROWTH_TURNS:,}"
            f" {result['late']:6.0f} µs, {result['bytes'] / 1e6:.1f} MB"
            f"   growth {result['growth']:.2f}"
        )
    return worst


def memory() -> float:
    """The growth of a client's process over many calls, in MB."""
    words = [str(HERE / "_client_memory.py"), str(MEMORY_CALLS)]
    run = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, check=True)
    result = json.loads(run.stdout)
    print(
        f"memory over {MEMORY_CALLS:,} calls: {result['growth']:.1f} MB; {result['trimmed']:.1f} MB"
        f" after malloc_trim, {result['objects']:,} objects more"
    )
    grown: float = result["growth"]
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are reported")
    parser.add_argument("--calls", type=int, default=60, help="of a round; the slow make fewer")
    parser.add_argument("--long", action="store_true", help="with the growth of memory: minutes")
    chosen = parser.parse_args()
    compiled()
    from _client_same import same_documents  # it imports the package

    same_documents(WIRES)
    foreign = strangers()
    listed = [*OURS, *SDKS, *(OTHERS if foreign else []), *PLAIN]
    with (
        child("fixed", "_client_answers.py") as server,
        contest(f"http://127.0.0.1:{server.port}", listed, foreign or "") as contestants,
    ):
        figures = Figures(rounds(contestants, chosen.rounds, chosen.calls))
        table(figures, contestants)
    grown = growth()
    ours, msgspec, import_ratio = importing("anaphora", "msgspec", IMPORTS)
    print(f"import anaphora {ours * 1e3:.1f} ms   import msgspec {msgspec * 1e3:.1f} ms")
    grown_mb = memory() if chosen.long else None
    summary = {
        "session_vs_raw": round(max(figures.ratios("session", "raw")), 3),
        "oneshot_vs_raw": round(max(figures.ratios("one-shot", "raw")), 3),
        "openai_sdk_vs_ours": figures.least("openai SDK"),
        "anthropic_sdk_vs_ours": figures.least("anthropic SDK"),
        "pydantic_ai_vs_ours": figures.least("pydantic-ai"),
        "litellm_vs_ours": figures.least("LiteLLM"),
        "growth_10_to_1000": round(grown, 3),
        "import_vs_msgspec": round(import_ratio, 3),
        "rss_growth_mb_100k": grown_mb,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
