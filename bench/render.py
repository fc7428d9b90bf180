"""What a turn costs in a long conversation, beside what everyone else does: serialise all of it.

    python bench/render.py [--turns 2000]

A turn is render + plan + assemble + fingerprint. All figures are ratios measured in one run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator

from blake3 import blake3

from anaphora import cache, catalog
from anaphora.cache.plan import AppMemory, Planner
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Rendered, Request
from anaphora.values import CachePolicy, Conversation, Message, Tool, ToolCall
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = catalog.rules("anthropic", MODEL)

WORDS = (
    "the agent reads a file and edits one line then runs every test again because nothing is done"
    " until the suite is green and the diff is small enough to review in one sitting over coffee"
).split()


def prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    while size > 0:
        words.append(rng.choice(WORDS))
        size -= len(words[-1]) + 1
    return " ".join(words)


def turns(count: int, seed: int = 7) -> Iterator[tuple[Message, ...]]:
    """An agent at work, about 1 kB a turn: every second turn is a tool call and its result."""
    rng = random.Random(seed)
    for turn in range(count):
        if turn % 2:
            call_id = f"toolu_{turn:06d}"
            arguments = json.dumps({"path": f"src/module_{turn}.py", "offset": turn, "limit": 80})
            yield (
                Message.assistant(prose(rng, 120), ToolCall(call_id, "read_file", arguments)),
                Message.tool(call_id, prose(rng, 700) + '\n    return "ok"\n'),
            )
        else:
            yield (Message.assistant(prose(rng, 500)), Message.user(prose(rng, 450)))


TOOLS = tuple(
    Tool(
        f"tool_{index:02d}",
        prose(random.Random(index), 200),
        json.dumps({"type": "object", "properties": {"path": {"type": "string"}}}),
        cache=CachePolicy.EPHEMERAL_1H,
    )
    for index in range(12)
)
SYSTEM = (
    PromptBlock.cached_long("identity", prose(random.Random(1), 4000)),
    PromptBlock.cached_short("knowledge", prose(random.Random(2), 2000)),
)


def call_for(conversation: Conversation, turn: int) -> Call:
    tail = [Message.user(f"turn {turn}: 3 files open, 2 tests failing")]
    ir = PromptIR.chat(conversation, system=SYSTEM, tail=tail)
    return Call(ir=ir, model=MODEL, tools=TOOLS, params=Params(max_tokens=4096))


def take_turn(call: Call, previous: Rendered | None, planner: Planner) -> tuple[Rendered, Request]:
    rendered = anthropic.render(call, PROFILE, previous)
    request = anthropic.assemble(rendered, planner.plan(rendered, at=0.0))
    cache.fingerprint(rendered)
    return rendered, request


def timed(action: Callable[[], object]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def grow(count: int) -> tuple[dict[int, float], dict[int, float], Conversation]:
    """Seconds per turn, without and with the final join, and the whole conversation."""
    bare: dict[int, float] = {}
    joined: dict[int, float] = {}
    conversation = Conversation([Message.user("Make the suite green.")])
    planner = Planner(AppMemory(RULES))
    previous, _ = take_turn(call_for(conversation, 0), None, planner)
    for turn, added in enumerate(turns(count), 1):
        conversation = conversation.append(*added)
        call = call_for(conversation, turn)
        begin = time.process_time()
        previous, request = take_turn(call, previous, planner)
        bare[turn] = time.process_time() - begin
        request.body.join()
        joined[turn] = time.process_time() - begin
    return bare, joined, conversation


def around(times: dict[int, float], turn: int, reach: int = 10) -> float:
    """The median of the turns about one, the tool turns and the others alike."""
    near = [seconds for at, seconds in times.items() if abs(at - turn) <= reach]
    return statistics.median(near)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are reported")
    options = parser.parse_args()
    last, early = options.turns, min(20, options.turns)

    rounds = [grow(options.turns) for _ in range(options.rounds)]
    conversation = rounds[-1][2]
    warm = statistics.median(around(joined, last) for _, joined, _ in rounds)
    bare_last = statistics.median(around(bare, last) for bare, _, _ in rounds)
    bare_early = statistics.median(around(bare, early) for bare, _, _ in rounds)

    call = call_for(conversation, last)
    memory = AppMemory(RULES)
    _, request = take_turn(call, None, Planner(memory))
    body_bytes = request.body.join()
    body = json.loads(body_bytes)
    dumps = statistics.median(timed(lambda: json.dumps(body)) for _ in range(9))
    hashing = statistics.median(timed(lambda: blake3(body_bytes).digest()) for _ in range(9))

    def cold() -> bytes:
        # A copy, so that nothing of an earlier rendering can be reused.
        fresh = call_for(conversation, last)
        return take_turn(fresh, None, Planner(memory))[1].body.join()

    cold_time = statistics.median(timed(cold) for _ in range(9))

    print(f"{last} turns, {len(conversation)} messages, {len(body_bytes) / 1e6:.2f} MB\n")
    print(f"{'json.dumps of the body':44}{dumps * 1e6:10.0f} µs")
    print(f"{'BLAKE3 of the body':44}{hashing * 1e6:10.0f} µs")
    print(f"{f'turn {last}, joined':44}{warm * 1e6:10.0f} µs   1/{dumps / warm:.0f} of json.dumps")
    print(f"{f'turn {last}, without the join':44}{bare_last * 1e6:10.0f} µs")
    print(
        f"{f'turn {early}, without the join':44}{bare_early * 1e6:10.0f} µs"
        f"   growth {bare_last / bare_early:.2f}"
    )
    print(
        f"{'cold: all of it rendered, hashed and joined':44}{cold_time * 1e6:10.0f} µs"
        f"   {cold_time / (dumps + hashing):.2f} of dumps + BLAKE3\n"
    )
    ratios = {
        "warm_vs_json_dumps": round(warm / dumps, 5),
        "growth_20_to_2000": round(bare_last / bare_early, 3),
        "cold_vs_dumps_and_hash": round(cold_time / (dumps + hashing), 3),
    }
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
