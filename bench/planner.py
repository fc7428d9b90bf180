"""What the planner's breakpoints cost, beside other strategies and beside perfect foresight.

    python bench/planner.py [--quick] [--traces DIR]

Every strategy marks the same requests; the simulator bills them by the provider's rules, in
multiples of the uncached input price. Foresight is a lower bound for any marking: every block by
itself, written, kept and read as it would have been best, without slots, minimum or look-back.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

import _families as made
import msgspec
from _fixed import FixedBills, SentBody, play
from _hosts import pinned_read_share
from _recorded import recordings
from _summarized import summarised

from anaphora import catalog, wire
from anaphora.cache.plan import AppMemory, Planner, SingleCallPlanner
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Ttl

#: Providers with explicit caching, each with a model and how its wire is called.
PROVIDERS = {
    "anthropic": ("claude-sonnet-4-5", "anthropic"),
    "anthropic 0.05": ("claude-opus-5-5", "anthropic"),
    "minimax": ("MiniMax-M2.7", "minimax/anthropic"),
    "alibaba": ("qwen3-max", "alibaba"),
    "openai": ("gpt-5.6", "openai"),
}

#: Programs through `watch --fix`: without markers, and with markers of their own.
PROGRAMS = ("none", "system+2 users")
FIXED_SEEDS = 2

TRACES = Path(__file__).parent.parent.parent / "shared" / "traces"


class Request(msgspec.Struct, frozen=True, eq=False):
    """One call of a family, rendered for one provider."""

    at: float
    conversation: int
    rendered: Rendered
    single: bool
    """Outside any session."""


Strategy = Callable[[Request], Plan]


class Game:
    """One provider's way to say and bill a family."""

    def __init__(self, name: str, model: str, dialect: str) -> None:
        provider = wire.provider_of(dialect)
        self.name = name
        self.model = model
        self.codec = wire.get(dialect)
        self.profile = catalog.profile(provider, model)
        row = dialect.partition("/")[2] or wire.dialect_of(dialect).wire
        self.rules = catalog.rules(provider, model, row)

    def render(self, sent: list[made.Sent]) -> list[Request]:
        last: dict[int, Rendered] = {}
        rendered = []
        for each in sent:
            now = self.codec.render(each.call, self.profile, last.get(each.conversation))
            last[each.conversation] = now
            rendered.append(Request(each.at, each.conversation, now, each.single))
        return rendered


def bill(rules: CacheRules, requests: list[Request], plan: Strategy) -> float:
    simulator = Simulator(rules)
    total = 0.0
    for request in requests:
        chosen = plan(request)
        outcome = simulator.call(RenderedPrompt(request.rendered, chosen), at=request.at)
        read = rules.read_price.value
        if not chosen.marks and rules.automatic_read_price is not None:
            read = rules.automatic_read_price.value
        total += outcome.uncached + outcome.read * read
        total += sum(
            tokens * (rules.write_price[ttl].value if ttl in rules.write_price else 1.0)
            for ttl, tokens in outcome.written.items()
        )
    return total


def foresight(rules: CacheRules, requests: list[Request]) -> float:
    """A lower bound for any marking: each block by itself, at its best. Where a provider also
    caches unmarked prompts, the better of the two ways: each gives up what the other keeps."""
    marked = _marked_bound(rules, requests)
    return marked if rules.unmarked_caching is None else min(marked, bill(rules, requests, nothing))


def _marked_bound(rules: CacheRules, requests: list[Request]) -> float:
    """A block that takes no marker is kept only together with the next block that does, so what
    counts for it is when that one comes again."""
    uses: dict[tuple[Hashable, Hashable], list[float]] = defaultdict(list)
    sizes: dict[tuple[Hashable, Hashable], int] = {}
    for request in requests:
        prompt = RenderedPrompt(request.rendered, Plan())
        found: Hashable = None
        for position in range(len(prompt) - 1, -1, -1):
            key = prompt.key(position)
            found = key if prompt.can_mark(position) else found
            uses[key, found].append(request.at)
            sizes[key, found] = prompt.tokens(position) - prompt.tokens(position - 1)
    read = rules.read_price.value
    writes = {ttl: figure.value for ttl, figure in rules.write_price.items()}

    @functools.cache
    def best(times: tuple[float, ...], kept: bool) -> float:
        """The cheapest way to send one token at these times; `kept` where a marker can keep it."""
        states: dict[Ttl | None, float] = {None: 0.0}
        last = float("-inf")
        for at in times:
            after: dict[Ttl | None, float] = {}
            for state, cost in states.items():
                choices: list[tuple[Ttl | None, float]] = [(None, 1.0)]
                if state is not None and at - last <= TTL_SECONDS[state]:
                    choices = [(state, read)]
                elif kept:
                    choices += list(writes.items())
                for reached, price in choices:
                    after[reached] = min(after.get(reached, float("inf")), cost + price)
            states, last = after, at
        return min(states.values())

    return sum(best(tuple(times), key[1] is not None) * sizes[key] for key, times in uses.items())


# ── Strategies ───────────────────────────────────────────────────────────────────────────────────


def nothing(_: Request) -> Plan:
    return Plan()


def automatic(request: Request) -> Plan:
    rendered = request.rendered
    if not rendered.request_markers:
        return Plan(marks=_marks(rendered, [_last(rendered, "messages")]))
    return Plan(automatic=_shortest(rendered.request_markers))


def system_and_two_users(request: Request) -> Plan:
    rendered = request.rendered
    return Plan(marks=_marks(rendered, [_last(rendered, "system"), *_users(rendered, 2)]))


def tool_system_user(request: Request) -> Plan:
    rendered = request.rendered
    places = [_last(rendered, "tools"), _last(rendered, "system"), *_users(rendered, 1)]
    return Plan(marks=_marks(rendered, places))


def policies(request: Request) -> Plan:
    """By hand: one hour on a block labelled `identity`, as the made-up families have one, and the
    rolling pair."""
    plan, rendered = system_and_two_users(request), request.rendered
    system = _last(rendered, "system")
    if system is None or rendered.chunk(system).label != "identity":
        return Plan(marks=tuple(mark for mark in plan.marks if mark.chunk != system))
    longest = max(rendered.markers, key=lambda ttl: TTL_SECONDS[ttl])
    return Plan(marks=tuple(Mark(m.chunk, longest) if m.chunk == system else m for m in plan.marks))


def ours(rules: CacheRules) -> Strategy:
    memory = AppMemory(rules)
    planners: dict[int, Planner] = defaultdict(lambda: Planner(memory))

    def plan(request: Request) -> Plan:
        rendered, at = request.rendered, request.at
        if request.single:
            single = SingleCallPlanner(memory, rendered)
            chosen = single.plan(rendered, at=at, reuse_expected=single.reuse_expected)
            single.sent_single(rendered, chosen, at=at)
        else:
            planner = planners[request.conversation]
            chosen = planner.plan(rendered, at=at)
            planner.sent(rendered, chosen, at=at)
        return chosen

    return plan


def _marks(rendered: Rendered, places: list[int | None]) -> tuple[Mark, ...]:
    ttl = _shortest(rendered.markers)
    return tuple(Mark(at, ttl) for at in sorted({at for at in places if at is not None}))


def _shortest(there: Iterable[Ttl]) -> Ttl:
    return min(there, key=lambda ttl: TTL_SECONDS[ttl])


def _last(rendered: Rendered, section: str) -> int | None:
    """The last block of a section that takes a marker."""
    first, found = 0, None
    for run in rendered.runs:
        if run.section == section:
            for at in range(run.count - 1, -1, -1):
                if run.log.splices[at] >= 0:
                    found = first + at
                    break
        first += run.count
    return found


def _users(rendered: Rendered, count: int) -> list[int]:
    """The last blocks of the last user turns (a tool's results are one on most wires)."""
    places = []
    for position in RenderedPrompt(rendered, Plan()).turn_ends():
        run, at = rendered.locate(position)
        while at >= 0 and run.log.splices[at] < 0:
            at, position = at - 1, position - 1
        if run.section == "messages" and at >= 0:
            places.append(position)
        if len(places) == count:
            break
    return places


def strategies(rules: CacheRules) -> dict[str, Strategy]:
    return {
        "none": nothing,
        "automatic": automatic,
        "system+2 users": system_and_two_users,
        "tool+system+user": tool_system_user,
        "policies by hand": policies,
        "ours": ours(rules),
    }


# ── Measuring ────────────────────────────────────────────────────────────────────────────────────


def measure(quick: bool, traces: Path) -> tuple[list[tuple[str, str, dict[str, float]]], list[str]]:
    """For each family and provider, each strategy's bill over that of foresight."""
    seeds, shapes = made.families()
    rows = []
    apart = [name for name, shape in shapes.items() if shape.apart]
    for name, (model, dialect) in PROVIDERS.items():
        game = Game(name, model, dialect)
        for family, shape in shapes.items():
            chosen = seeds[:1] if quick else seeds
            stories = [made.calls(shape, seed, model) for seed in chosen]
            rows.append((name, family, _bills(game, stories)))
        for file, sent in recordings(traces, model).items():
            rows.append((name, file, _bills(game, [sent])))
    return rows, apart


def _bills(game: Game, stories: list[list[made.Sent]]) -> dict[str, float]:
    bills: dict[str, float] = defaultdict(float)
    bound = 0.0
    for story in stories:
        requests = game.render(story)
        for strategy, plan in strategies(game.rules).items():
            bills[strategy] += bill(game.rules, requests, plan)
        bound += foresight(game.rules, requests)
    return {strategy: total / bound for strategy, total in bills.items()}


def fixed(quick: bool, traces: Path) -> dict[tuple[str, str, str], float]:
    """What `watch --fix` saves of the bill of a program, by provider, family and its markers."""
    seeds, shapes = made.families()
    found = {}
    for name, (model, dialect) in PROVIDERS.items():
        game, provider = Game(name, model, dialect), wire.provider_of(dialect)
        chosen = seeds[: 1 if quick else FIXED_SEEDS]
        stories = {f: [made.calls(s, seed, model) for seed in chosen] for f, s in shapes.items()}
        stories |= {file: [sent] for file, sent in recordings(traces, model).items()}
        for family, told in stories.items():
            for program in PROGRAMS:
                bills = FixedBills()
                for story in told:
                    plan, sent = strategies(game.rules)[program], list[SentBody]()
                    for request in game.render(story):
                        made_request = game.codec.assemble(request.rendered, plan(request))
                        sent.append(SentBody(request.at, b"".join(made_request.body)))
                    play(provider, made_request.path, sent, bills)
                found[name, family, program] = bills.saving
                print(f"{name:16}{family:24}{program:16}{bills.saving:10.4f}", flush=True)
    return found


def cost_of_planning(turns: int = 2000) -> tuple[float, float]:
    """Planning a turn over rendering it, and turn 2,000 over turn 20."""
    game = Game("anthropic", *PROVIDERS["anthropic"])
    shape = made.families()[1]["append_only"]
    sent = made.calls(
        msgspec.structs.replace(shape, calls=turns, result_words=(20, 60)), 1, game.model
    )
    planner = Planner(AppMemory(game.rules))
    last: Rendered | None = None
    rendering, planning = [], []
    for each in sent:
        begun = time.perf_counter()
        last = game.codec.render(each.call, game.profile, last)
        middle = time.perf_counter()
        plan = planner.plan(last, at=each.at)
        planning.append(time.perf_counter() - middle)
        rendering.append(middle - begun)
        planner.sent(last, plan, at=each.at)
    ratio = statistics.median(planning[20:]) / statistics.median(rendering[20:])
    early, late = statistics.median(planning[15:65]), statistics.median(planning[-50:])
    return ratio, late / early


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed instead of five")
    parser.add_argument("--traces", type=Path, default=TRACES, help="recorded conversations")
    options = parser.parse_args()
    if not options.traces.is_dir():
        print(f"no recorded conversations in {options.traces}: only made-up ones")
    rows, apart = measure(options.quick, options.traces)
    names = list(rows[0][2])
    print("bill over that of perfect foresight")
    print(f"{'provider':16}{'family':24}" + "".join(f"{name:>18}" for name in names))
    regrets, not_cheapest, single = [], [], []
    for provider, family, bills in rows:
        shown = "".join(f"{bills[name]:18.3f}" for name in names)
        print(f"{provider:16}{family:24}{shown}{'   (apart)' if family in apart else ''}")
        if family == "single_calls":
            single.append(bills["ours"] / bills["none"])
        if family in apart:
            continue
        regrets.append(bills["ours"] - 1)
        if bills["ours"] > 1.01 * min(value for name, value in bills.items() if name != "ours"):
            not_cheapest.append(f"{provider}: {family}")
    ratio, growth = cost_of_planning(400 if options.quick else 2000)
    print(f"planning a turn over rendering it: {ratio:.2f}; turn 2,000 over turn 20: {growth:.2f}")
    played = summarised(options.traces, quick=options.quick)
    for name, each in played.items():
        print(
            f"read share of a summarising call, {name}: {each.median:.3f} in the median of"
            f" {len(each.shares)}, worst {min(each.shares):.3f};"
            f" {each.uncached} too short, {each.refused} refused"
        )
    shares = [each.median for each in played.values()]
    pinned = pinned_read_share(options.quick)
    print("saved by `watch --fix`, as a share of the program's bill")
    savings = fixed(options.quick, options.traces)
    print(
        json.dumps(
            {
                "mean_regret": round(statistics.mean(regrets), 4),
                "worst_regret": round(max(regrets), 4),
                "families_not_cheapest": not_cheapest,
                "plan_vs_render": round(ratio, 3),
                "single_calls_vs_unmarked": round(max(single), 4),
                "summarize_read_share": round(min(shares), 4) if shares else None,
                "pinned_read_share": round(pinned, 4),
                "fix_saving_worst": round(min(savings.values()), 4),
                "fix_saving_median": round(statistics.median(savings.values()), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
