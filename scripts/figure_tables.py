"""Markdown tables and single figures from the results of cachebench, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
#: The page whose figures say how well the simulator predicts bills, which the emulator bills by.
ACCURACY = ROOT / "docs" / "guides" / "how-good-is-the-prediction.md"
OURS, PLAIN = "anaphora", "sdk"
#: The client whose careless layout is another: its bill of the stable one is the client's.
WITH_STATE = "anaphora-state"
DAEMON = "daemon"
#: Differences below this share are none.
_SAME = 0.005
#: The load by which gateways are compared in sentences: kilobytes and connections.
SIZE, CONNECTIONS = "40", "64"


class Results:
    """The results file, and why parts of it are missing."""

    def __init__(self, found: Json) -> None:
        self.found = found

    def part(self, name: str) -> Json | None:
        part: Json | None = self.found["parts"].get(name)
        return None if part is None or "skipped" in part else part

    def why(self, name: str) -> str:
        part = self.found["parts"].get(name)
        return "Not measured." if part is None else f"Not measured: {part['skipped']}."

    @property
    def quick(self) -> bool:
        return any(part.get("quick") for part in self.found["parts"].values())


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def dollars(value: float) -> str:
    return f"${value:.3f}" if value >= 0.1 else f"${value:.4f}"


# ── Peers ────────────────────────────────────────────────────────────────────────────────────────


def measured(peers: Json) -> dict[tuple[str, str], Json]:
    """Rows that were measured, by peer and provider."""
    return {
        (row["peer"], row["provider"]): row["layouts"] for row in peers["rows"] if "layouts" in row
    }


def complete(bill: Json) -> bool:
    """Whether all calls were answered: only such bills are compared."""
    return bill["dollars"] > 0 and not bill["refused"] and not bill["errors"]


def unanswered(layouts: Json) -> str:
    """A remark beside bills that are lower because calls failed."""
    return "" if all(map(complete, layouts.values())) else " (not all calls were answered)"


def results_table(results: Results, layout: str = "stable") -> str:
    """Each peer's bill as a share of the plain SDK's of the same layout, by provider."""
    peers = results.part("peers")
    if peers is None:
        return results.why("peers")
    bills = {at: each[layout] for at, each in measured(peers).items()}
    plain = {key: bills[PLAIN, key] for key in peers["providers"] if (PLAIN, key) in bills}
    plain = {key: bill for key, bill in plain.items() if complete(bill)}
    least = {
        key: min(b["dollars"] for (_, at), b in bills.items() if at == key and complete(b))
        for key in plain
    }
    rows = list[list[str]]()
    for peer, about in peers["peers"].items():
        if peer == WITH_STATE and layout == "stable":
            continue
        cells = []
        for key in plain:
            bill = bills.get((peer, key))
            if bill is None or not complete(bill):
                cells.append("–" if bill is None else "not all answered")
                continue
            share = f"{100 * bill['dollars'] / plain[key]['dollars']:.0f}%"
            lowest = bill["dollars"] <= least[key] * (1 + _SAME)
            cells.append(f"**{share}**" if lowest else share)
        rows.append([about["title"], *cells])
    best = {key: peers["foresight"][key][layout] for key in plain}
    shares = [
        f"{100 * best[key] / plain[key]['dollars']:.0f}%" if best[key] else "–" for key in plain
    ]
    rows.append(["perfect foresight", *shares])
    return table(["bill", *(peers["providers"][key]["title"] for key in plain)], rows)


def careless_table(results: Results) -> str:
    return results_table(results, "careless")


def peers_tables(results: Results) -> str:
    peers = results.part("peers")
    if peers is None:
        return results.why("peers")
    heads = ["", "dollars", "above perfect foresight", "read", "wasted writes", "refused"]
    heads += ["CPU a call, ms", "careless: dollars", "careless: read"]
    parts, by = list[str](), measured(peers)
    for key, provider in peers["providers"].items():
        rows, missing = [], dict[str, list[str]]()
        for row in peers["rows"]:
            if row["provider"] != key:
                continue
            title = peers["peers"][row["peer"]]["title"]
            if (row["peer"], key) in by:
                layouts = by[row["peer"], key]
                rows.append([title + unanswered(layouts), *_bill_cells(layouts)])
            else:
                missing.setdefault(str(row["skipped"]).partition("\n")[0], []).append(title)
        parts.append(f"**{provider['title']}**, `{provider['model']}`")
        if rows:
            parts.append(table(heads, rows))
        if missing:
            parts.append(
                "\n".join(f"- Without {', '.join(who)}: {w}." for w, who in missing.items())
            )
    return "\n\n".join(parts)


def _bill_cells(layouts: Json) -> list[str]:
    stable, careless = layouts["stable"], layouts["careless"]
    best = stable["foresight_dollars"]
    return [
        dollars(stable["dollars"]),
        f"{100 * (stable['dollars'] / best - 1):.1f}%" if best else "–",
        percent(stable["read_share"]),
        f"{stable['wasted_writes']:,}",
        str(stable["refused"]),
        f"{stable['cpu_ms']:.1f}" if stable["cpu_ms"] is not None else "–",
        dollars(careless["dollars"]),
        percent(careless["read_share"]),
    ]


def peers_settings(results: Results) -> str:
    peers = results.part("peers")
    if peers is None:
        return results.why("peers")
    rows = [[about["title"], about["settings"]] for about in peers["peers"].values()]
    return table(["", "settings"], rows)


def peers_sample(results: Results) -> str:
    peers = results.part("peers")
    if peers is None:
        return results.why("peers")
    families = peers["sample"]["families"]
    rows = [[f"`{name}`", each["source"], str(each["calls"])] for name, each in families.items()]
    return table(["conversations", "", "calls"], rows)


def peers_prompts(results: Results) -> str:
    """Where a peer's prompts have other lengths than the plain SDK's."""
    peers = results.part("peers")
    if peers is None:
        return results.why("peers")
    by = measured(peers)
    lines = []
    for (peer, key), layouts in by.items():
        if (PLAIN, key) not in by or not all(map(complete, layouts.values())):
            continue
        share = layouts["stable"]["tokens"] / by[PLAIN, key]["stable"]["tokens"] - 1
        if abs(share) > peers["deviations"]["tolerance"]:
            where = peers["providers"][key]["title"]
            lines.append(f"- {peers['peers'][peer]['title']} at {where}: {100 * share:+.1f}%.")
    return "\n".join(lines) or "- At none."


# ── Gateways, engine, ourselves ──────────────────────────────────────────────────────────────────


def gateways_table(results: Results) -> str:
    part = results.part("gateways")
    if part is None:
        return results.why("gateways")
    sizes = {size: f"{size} KB" for each in part["gateways"].values() for size in each["sizes"]}
    heads = [""]
    heads += [f"{title}, {count}" for title in sizes.values() for count in ("8", "64")]
    heads += [f"first byte, {title}" for title in sizes.values()] + ["memory, MB"]
    rows = []
    for each in part["gateways"].values():
        loads = [
            f"{each['sizes'][size][n]['per_core']:,.0f}" for size in sizes for n in ("8", "64")
        ]
        firsts = [each["sizes"][size]["first_byte_ms"] for size in sizes]
        shown = ["–" if first is None else f"{first:.1f} ms" for first in firsts]
        rows.append([each["title"], *loads, *shown, f"{each['memory_mb']:,.0f}"])
    notes = [
        f"- {each['title']}: {each['stream_error']}."
        for each in part["gateways"].values()
        if "stream_error" in each
    ]
    notes += [f"- Without {title}: {why}." for title, why in part["skipped_gateways"].items()]
    return "\n\n".join([table(heads, rows), *(["\n".join(notes)] if notes else [])])


def gateways_does(results: Results) -> str:
    part = results.part("gateways")
    if part is None:
        return results.why("gateways")
    heads = ["", "auth", "limits", "cache", "audit"]
    rows = [
        [each["title"], *(each["does"][head] for head in heads[1:])]
        for each in part["gateways"].values()
    ]
    return table(heads, rows)


def engine_table(results: Results) -> str:
    part = results.part("engine")
    if part is None:
        return results.why("engine")
    names = {"careless": "careless", "ours": "Anaphora"}
    rows = [
        [
            names[name],
            f"{each['first_token_ms'][0]:,.0f}",
            f"{each['first_token_median_ms']:,.0f}",
            f"{each['prefilled_total']:,}",
            f"{each['tokens_total']:,}",
        ]
        for name, each in part["layouts"].items()
    ]
    heads = ["layout", "first token of turn 1, ms", "of later turns, median", "tokens prefilled"]
    return table([*heads, "tokens in all prompts"], rows)


def calls_table(results: Results) -> str:
    part = results.part("ourselves")
    if part is None:
        return results.why("ourselves")
    names = {
        "raw": "POST by hand",
        "one-shot": "Anaphora, single call",
        "session": "Anaphora, session",
    }
    rows = [
        [names.get(who, who), wire, f"{each['us']:,}", f"{each['vs_raw']:.2f}"]
        for wire, callers in part["calls"].items()
        for who, each in callers.items()
    ]
    return table(["", "wire", "CPU, µs", "times the POST"], rows)


def streams_table(results: Results) -> str:
    part = results.part("ourselves")
    if part is None:
        return results.why("ourselves")
    rows = [
        [f"{name} SDK", f"{each['ours_ms']:.1f}", f"{each['sdk_ms']:.1f}", f"{each['times']:.1f}"]
        for name, each in part["streams"].items()
        if name != "events"
    ]
    return table(["", "Anaphora, ms", "SDK, ms", "times"], rows)


def render_table(results: Results) -> str:
    part = results.part("ourselves")
    if part is None:
        return results.why("ourselves")
    rows = [
        [
            f"{int(turn):,}",
            f"{each['kilobytes']:,} KB",
            f"{each['turn_us']:,}",
            f"{each['dumps_us']:,}",
            f"{each['times']:.1f}",
        ]
        for turn, each in part["render"].items()
    ]
    return table(["turn", "body", "turn, µs", "`json.dumps`, µs", "times"], rows)


def imports_memory(results: Results) -> str:
    part = results.part("ourselves")
    if part is None:
        return results.why("ourselves")
    found, memory = part["import"], part["memory"]
    sdks = ", ".join(f"the {n} SDK {found[n]['ms']:,.0f} ms" for n in ("anthropic", "openai"))
    lines = [
        f"- `import anaphora` takes {found['anaphora_ms']:.0f} ms of CPU; {sdks}.",
        f"- A client's process grows by {memory['growth_mb']:.1f} MB over {memory['calls']:,}"
        f" calls; the cache simulator's by {memory['simulated_growth_mb']:.1f} MB over"
        f" {memory['simulated_calls']:,} simulated calls.",
    ]
    return "\n".join(lines)


# ── Where a peer is ahead ────────────────────────────────────────────────────────────────────────


def ahead(results: Results) -> str:
    """Every comparison that Anaphora loses, computed."""
    lines = [*_peers_ahead(results), *_gateways_ahead(results), *_ours_ahead(results)]
    return "\n".join(f"- {line}." for line in lines) or "- In none of these figures."


def _peers_ahead(results: Results) -> Iterable[str]:
    peers = results.part("peers")
    if peers is None:
        return
    by = measured(peers)
    for key, provider in peers["providers"].items():
        if (OURS, key) not in by:
            continue
        for layout in ("stable", "careless"):
            ours = by[OURS, key][layout]
            for peer, about in peers["peers"].items():
                if peer.startswith(OURS) or (peer, key) not in by:
                    continue
                theirs = by[peer, key][layout]
                where = f"{provider['title']}, {layout} layout: {about['title']}"
                less = 1 - theirs["dollars"] / ours["dollars"] if ours["dollars"] else 0
                if less > _SAME and complete(theirs) and complete(ours):
                    yield f"{where} pays {100 * less:.1f}% less than Anaphora's client"
                if theirs["refused"] < ours["refused"]:
                    yield (
                        f"{where} has {theirs['refused']} refused requests, Anaphora's client"
                        f" {ours['refused']}"
                    )
    for peer, about in peers["peers"].items():
        pairs = [
            (by[peer, key]["stable"]["cpu_ms"], by[OURS, key]["stable"]["cpu_ms"])
            for key in peers["providers"]
            if not peer.startswith(OURS) and (peer, key) in by and (OURS, key) in by
        ]
        less = [(cpu, own) for cpu, own in pairs if cpu and own and cpu < own * (1 - _SAME)]
        if less:
            theirs, ours = (sum(each) / len(less) for each in zip(*less, strict=True))
            yield (
                f"{about['title']} takes less CPU a call at {len(less)} of {len(pairs)} providers:"
                f" {theirs:.1f} ms in the mean there, Anaphora's client {ours:.1f} ms"
            )


def _gateways_ahead(results: Results) -> Iterable[str]:
    part = results.part("gateways")
    if part is None or DAEMON not in part["gateways"]:
        return
    ours = part["gateways"][DAEMON]
    for name, each in part["gateways"].items():
        if name.startswith(DAEMON):
            continue
        own, other = (one["sizes"][SIZE] for one in (ours, each))
        more = other[CONNECTIONS]["per_core"] / own[CONNECTIONS]["per_core"]
        if more > 1 + _SAME:
            yield (
                f"{each['title']} carries {more:.1f} times the requests of 40 KB a second on a"
                " core that the daemon carries"
            )
        first = other["first_byte_ms"]
        if first is not None and first < own["first_byte_ms"]:
            yield (
                f"{each['title']} adds {first:.1f} ms to the first byte at 40 KB, the daemon"
                f" {own['first_byte_ms']:.1f} ms"
            )
        if each["memory_mb"] < ours["memory_mb"]:
            yield (
                f"{each['title']} takes {each['memory_mb']:.0f} MB, the daemon"
                f" {ours['memory_mb']:.0f} MB"
            )


def _ours_ahead(results: Results) -> Iterable[str]:
    part = results.part("ourselves")
    if part is None:
        return
    for wire, callers in part["calls"].items():
        for who in ("one-shot", "session"):
            if callers[who]["vs_raw"] > 1 + _SAME:
                yield (
                    f"A POST by hand on {wire} takes less CPU than Anaphora's {who}:"
                    f" 1 to {callers[who]['vs_raw']:.2f}"
                )
    for name, each in part["streams"].items():
        if name != "events" and each["times"] < 1:
            yield f"The {name} SDK reads a stream with {each['times']:.2f} of our CPU"


# ── The rest ─────────────────────────────────────────────────────────────────────────────────────


def machine(results: Results) -> str:
    about = results.found["machine"]
    memory = re.sub(r"(\d+) kB", lambda m: f"{int(m[1]) / 1e6:.0f} GB", about["memory"])
    text = (
        f"Measured on {results.found['date']}: {about['cpu']}, {about['cores']} cores, {memory},"
        f" Python {about['python']}, {about['kernel']}."
    )
    quick = " A quick run on a busy machine: read these figures as a sample." * results.quick
    return text + quick


def versions(results: Results) -> str:
    return ", ".join(f"{name} {each}" for name, each in sorted(results.found["versions"].items()))


def accuracy(results: Results) -> str:  # noqa: ARG001 - from the page that measures it
    rows = re.findall(
        r"^\| `(\w+)` +\| +(.+?) \| +([\d.]+%) \|", ACCURACY.read_text(), re.MULTILINE
    )
    found = {name: value for name, _, value in rows}
    return (
        f"{found['anthropic_loop_exact']} of the calls in Anthropic's tool loops read exactly what"
        f" the rules predict; the bill of a conversation is off by {found['bill_error_median']} in"
        f" the median, and by {found['worst_bill_error_median']} in the worst family"
    )


def picture_text(results: Results) -> str:
    part = results.part("picture")
    if part is None:
        return results.why("picture")
    usual, ours = part["dollars"]["usual"], part["dollars"]["ours"]
    return (
        f"{part['turns']} turns on {part['model']}: {dollars(usual)} as usual,"
        f" {dollars(ours)} with Anaphora"
    )


TABLES: dict[str, Callable[[Results], str]] = {
    "results": results_table,
    "results-careless": careless_table,
    "peers": peers_tables,
    "peers-settings": peers_settings,
    "peers-sample": peers_sample,
    "peers-prompts": peers_prompts,
    "gateways": gateways_table,
    "gateways-does": gateways_does,
    "engine": engine_table,
    "calls": calls_table,
    "streams": streams_table,
    "render": render_table,
    "imports-memory": imports_memory,
    "ahead": ahead,
    "machine": machine,
    "versions": versions,
    "accuracy": accuracy,
    "picture": picture_text,
}


def single(results: Results) -> dict[str, str]:
    """Figures that stand in a sentence."""
    found = dict[str, str]()
    if picture := results.part("picture"):
        usual, ours = picture["dollars"]["usual"], picture["dollars"]["ours"]
        found |= {
            "picture-usual": dollars(usual),
            "picture-ours": dollars(ours),
            "picture-saved": percent(1 - ours / usual),
            "picture-read-usual": percent(picture["read_share"]["usual"]),
            "picture-read-ours": percent(picture["read_share"]["ours"]),
        }
    if peers := results.part("peers"):
        found["peers-calls"] = str(peers["sample"]["calls_per_family"])
    if engine := results.part("engine"):
        found["engine-times"] = f"{engine['first_token_ratio']:.0f}"
        found["engine-turns"] = str(engine["turns"])
    if own := results.part("ourselves"):
        found |= {
            "import-ms": f"{own['import']['anaphora_ms']:.0f} ms",
            "session-vs-raw": f"{max(c['session']['vs_raw'] for c in own['calls'].values()):.2f}",
            "render-times": f"{list(own['render'].values())[-1]['times']:.0f}",
        }
    return found


def figures(found: Json) -> dict[str, str]:
    """The text of every name; those of several lines stand in paragraphs of their own."""
    results = Results(found)
    return {name: write(results) for name, write in TABLES.items()} | single(results)
