"""The part `peers`: conversations through the real code of each peer, billed by the emulator.

Each peer has its own process in its own environment, and sends the same conversations with its own
caching switched on. The clock of the emulator is set to the recorded times.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from strangers import environment
from strangers.environment import Unavailable

from .bills import Bill
from .cell import Cell, measure
from .progress import Progress
from .workload import LAYOUTS, TRACES, Family, careless, families

Json = dict[str, Any]
#: The first calls of each family. A quick run takes fewer, of a few families.
CALLS, QUICK_CALLS, QUICK_FAMILIES = 12, 3, ("append_only", "taubench_gpt4o_airline")
#: Prompts whose tokens differ by more than this share from the plain SDK's are reported.
TOLERANCE = 0.02
#: Processes at a time: each is a peer, and an emulator.
AT_ONCE = 2
BASE = "sdk"
SIMULATOR = Path(__file__).resolve().parents[1] / "simulator.py"


class Provider(NamedTuple):
    title: str
    model: str


PROVIDERS = {
    "anthropic": Provider("Anthropic", "claude-sonnet-4-6"),
    "openai-breakpoints": Provider("OpenAI, GPT-5.6 with breakpoints", "gpt-5.6"),
    "openai": Provider("OpenAI, automatic caching", "gpt-5.1"),
    "gemini": Provider("Gemini", "gemini-2.5-pro"),
    "deepseek": Provider("DeepSeek", "deepseek-v4-flash"),
    "bedrock": Provider("Bedrock Converse", "us.anthropic.claude-sonnet-4-6"),
}


class Peer(NamedTuple):
    title: str
    module: str
    environment: str
    """A list of soak/strangers/requirements; empty: ours."""
    packages: tuple[str, ...]
    settings: str
    """What is switched on, for its authors to check."""
    only: tuple[str, ...] = ()
    """The providers that its setting is for; empty: all."""
    why: str = ""
    """Why it has no others."""
    fixed: bool = False


PEERS = {
    "sdk": Peer(
        "official SDK, plain",
        "sdks",
        "peers",
        ("openai", "anthropic", "google-genai", "boto3"),
        "no cache settings: what the provider caches by itself",
    ),
    "sdk-automatic": Peer(
        "anthropic SDK, automatic marker",
        "sdk_automatic",
        "peers",
        ("anthropic",),
        'cache_control={"type": "ephemeral"} at the top of every request',
        ("anthropic",),
        "automatic markers are a setting of Anthropic's API",
    ),
    "pydantic-ai": Peer(
        "pydantic-ai",
        "through_pydantic_ai",
        "peers",
        ("pydantic-ai-slim",),
        "model setting cache=True; requests made with pydantic_ai.direct.model_request; the"
        " system prompt is a static instruction",
    ),
    "litellm": Peer(
        "LiteLLM",
        "through_litellm",
        "frameworks",
        ("litellm",),
        "cache_control_injection_points on tool_config, the system message and the last message;"
        ' for GPT-5.6 also prompt_cache_options={"mode": "implicit"}; none for providers that'
        " only cache by themselves. Replies are sent back as they are, at OpenAI without the field"
        " provider_specific_fields, which OpenAI refuses",
    ),
    "langchain": Peer(
        "LangChain",
        "through_langchain",
        "langchain",
        ("langchain", "langchain-anthropic", "langchain-openai", "langchain-aws"),
        "AnthropicPromptCachingMiddleware() at Anthropic, BedrockPromptCachingMiddleware() at"
        " Bedrock, called as create_agent does; no middleware exists for the others",
    ),
    "ai-sdk": Peer(
        "AI SDK",
        "ai_sdk",
        "npm-peers",
        ("ai", "@ai-sdk/anthropic", "@ai-sdk/openai", "@ai-sdk/google", "@ai-sdk/deepseek"),
        "providerOptions with cacheControl, cachePoint or promptCacheBreakpoint on the system"
        " message and the last message, at Anthropic also on the last tool; OpenAI by Chat"
        " Completions",
    ),
    "anaphora": Peer(
        "Anaphora, client",
        "ours",
        "",
        (),
        "a session for each conversation with its defaults; messages that are rebuilt at every"
        " call are its volatile tail; tools in a ToolRegistry",
    ),
    "anaphora-state": Peer(
        "Anaphora, client, the time as its state",
        "ours_with_state",
        "",
        (),
        "the same; in the careless layout the time is the session's state, which follows the"
        " conversation, and not in the system prompt",
    ),
    "anaphora-fix": Peer(
        "Anaphora, watch --fix before the plain SDK",
        "sdks",
        "peers",
        (),
        "the plain SDK with the base URL of `anaphora watch --fix`, a new one for each family",
        fixed=True,
    ),
}


def cells() -> tuple[list[Cell], list[Json]]:
    """What can be measured, and the rows of what cannot, with the reason."""
    found, rows = list[Cell](), list[Json]()
    for name, peer in PEERS.items():
        try:
            command, environ = _interpreter(peer)
            problem = ""
        except Unavailable as reason:
            problem = f"{reason}; run make bench-peers"
        for key, provider in PROVIDERS.items():
            why = peer.why if peer.only and key not in peer.only else problem
            if why:
                rows.append({"peer": name, "provider": key, "skipped": why})
                continue
            cell = Cell(name, peer.module, command, environ, key, provider.model, peer.fixed)
            found.append(cell)
    return found, rows


def _interpreter(peer: Peer) -> tuple[tuple[str, ...], dict[str, str]]:
    if not peer.environment:
        return (sys.executable,), {}
    folder = environment.programs(peer.environment, install=False)
    if peer.module == "ai_sdk":
        return ("node",), {"CACHEBENCH_MODULES": str(folder.parent)}
    return (str(folder / "python"),), {}


def versions() -> dict[str, str]:
    return {
        package: environment.version(peer.environment, package)
        for peer in PEERS.values()
        for package in peer.packages
    }


def sample(quick: bool) -> dict[str, list[Family]]:
    """The families of both layouts."""
    most = QUICK_CALLS if quick else CALLS
    stable = [each for each in families(most) if not quick or each.name in QUICK_FAMILIES]
    return {"stable": stable, "careless": [careless(each) for each in stable]}


def run(progress: Progress, quick: bool) -> Json:
    if not TRACES.is_dir():
        progress.note(f"no recorded conversations at {TRACES}: only generated ones")
    told, (todo, rows) = sample(quick), cells()
    progress.total(len(todo) + 1)
    with ProcessPoolExecutor(AT_ONCE) as pool:
        measuring = pool.submit(accuracy, quick)
        waiting = {pool.submit(_measured, cell, told): cell for cell in todo}
        for done in as_completed(waiting):
            cell = waiting[done]
            row = {"peer": cell.peer, "provider": cell.provider}
            try:
                rows.append({**row, **done.result()})
            except Exception as problem:  # one peer's failure is its row
                rows.append({**row, "skipped": f"{type(problem).__name__}: {problem}"[:1000]})
            progress.step(f"{PEERS[cell.peer].title}, {PROVIDERS[cell.provider].title}")
        accurate = measuring.result()
        progress.step("the emulator's accuracy")
    order = [(peer, provider) for peer in PEERS for provider in PROVIDERS]
    rows.sort(key=lambda row: order.index((row["peer"], row["provider"])))
    return {
        "providers": {key: each._asdict() for key, each in PROVIDERS.items()},
        "peers": {
            key: {"title": each.title, "settings": each.settings} for key, each in PEERS.items()
        },
        "sample": _described(told["stable"]),
        "rows": rows,
        "foresight": foresight(rows),
        "deviations": {"tolerance": TOLERANCE, "found": deviations(rows)},
        "accuracy": accurate,
        "versions": versions(),
    }


def accuracy(quick: bool) -> Json:
    """How well the emulator's rules predict recorded bills, as bench/simulator.py measures it."""
    if quick or not TRACES.is_dir():
        return {"skipped": "a quick run" if quick else f"no recorded conversations at {TRACES}"}
    command = [sys.executable, str(SIMULATOR), "--calls", "0", "--no-planted"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: Json = json.loads(run.stdout.splitlines()[-1])
    return {"command": "python bench/simulator.py --calls 0 --no-planted", "figures": figures}


def _measured(cell: Cell, told: dict[str, list[Family]]) -> Json:
    every = [family for layout in LAYOUTS for family in told[layout]]
    bills = measure(cell, every)
    count = len(told["stable"])
    by_layout = dict(zip(LAYOUTS, (bills[:count], bills[count:]), strict=True))
    return {
        "layouts": {layout: _total(each) for layout, each in by_layout.items()},
        "families": {
            layout: {bill.family: _total([bill]) for bill in each}
            for layout, each in by_layout.items()
        },
    }


def _total(bills: list[Bill]) -> Json:
    def total(name: str) -> Any:
        return sum(getattr(bill, name) for bill in bills)

    tokens, calls = total("tokens"), total("calls")
    cpu = [seconds for bill in bills for seconds in bill.cpu]
    known = [bill.foresight for bill in bills if bill.foresight is not None]
    return {
        "calls": calls,
        "dollars": round(total("dollars"), 6),
        "tokens": tokens,
        "read_share": round(total("read") / tokens, 4) if tokens else 0.0,
        "written": total("written"),
        "wasted_writes": total("wasted"),
        "refused": total("refused"),
        "cpu_ms": round(1000 * statistics.median(cpu), 3) if cpu else None,
        "foresight_dollars": round(sum(known), 6) if len(known) == len(bills) else None,
        "errors": [error for bill in bills for error in bill.errors][:2],
    }


def foresight(rows: list[Json]) -> Json:
    """Dollars of perfect foresight for the plain SDK's requests, by provider and layout; None where
    the provider takes no markers."""
    return {
        row["provider"]: {
            layout: bill["foresight_dollars"] for layout, bill in row["layouts"].items()
        }
        for row in rows
        if row["peer"] == BASE and "layouts" in row
    }


def _described(told: list[Family]) -> Json:
    return {
        "calls_per_family": max(len(family.calls) for family in told),
        "families": {
            family.name: {"source": family.source, "calls": len(family.calls)} for family in told
        },
    }


def deviations(rows: list[Json]) -> list[Json]:
    """Where a contestant's prompts have other lengths than the plain SDK's."""
    plain = {row["provider"]: row for row in rows if row["peer"] == BASE and "layouts" in row}
    found = []
    for row in rows:
        base = plain.get(row["provider"])
        if base is None or "layouts" not in row:
            continue
        for layout in LAYOUTS:
            for family, bill in row["families"][layout].items():
                wanted = base["families"][layout][family]["tokens"]
                share = bill["tokens"] / wanted - 1 if wanted else 0.0
                if abs(share) > TOLERANCE:
                    place = {"peer": row["peer"], "provider": row["provider"], "layout": layout}
                    found.append({**place, "family": family, "tokens": round(share, 4)})
    return found


def headline(found: Json) -> Json:
    """Dollars of each contestant at each provider, in the stable layout."""
    chosen: Json = {
        provider: {"foresight": dollars["stable"]}
        for provider, dollars in found["foresight"].items()
    }
    for row in found["rows"]:
        if "layouts" in row:
            dollars = row["layouts"]["stable"]["dollars"]
            chosen.setdefault(row["provider"], {})[row["peer"]] = dollars
    return chosen
