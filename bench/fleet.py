"""A fleet's logs with planted causes: what is found, and how time and memory grow.

    python bench/fleet.py [--full] [--processes 2] [--on ray]

Conversations with the emulator (`tests/support/planted_scripts.py`) are billed once for each script
and wire, and copied under ids of their own into JSON lines: no two begin alike, so that the bill of
each copy follows the same rules. Half of them are named in the log; of the others only the requests
tell. `anaphora.usage.fleet` reads the files.

- `planted_causes_found`: the share of the planted losses whose cause is found.
- `planted_false`: calls with a loss that is none, or with another cause.
- `fleet_growth`: CPU time per record at the largest number of records over that at the smallest.
- `fleet_mb`: the most memory of a process. `records_per_core_second`: of the largest number.

By default up to 20,000 records; `--full`: 10⁴, 10⁵ and 10⁶, of which the largest takes 4 GB of disk
twice.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pyarrow.parquet as pq
from support.planted import Json, spec
from support.planted_runs import Conversation
from support.planted_scripts import SCRIPTS, every_script

from anaphora.cache.verdict import CauseKind
from anaphora.usage.fleet import usage_of_logs

#: The id in each prompt's beginning, of which each copy has its own.
ID = b"3f9a21c4"
#: Scripts, and the cause that is planted.
CAUSE: dict[str, CauseKind | None] = {
    "a growing conversation": None,
    "reads that refresh": None,
    "messages taken back": None,
    "an expired entry": "expired",
    "a changed tool": "tools_changed",
    "a tool more": "tools_changed",
    "a changed byte in the system prompt": "system_changed",
    "another model": "model_changed",
    "another parameter": "parameter_changed",
    "a compaction": "compaction",
    "an edited message": "history_edited",
    "dropped messages": "history_edited",
    "below the minimum": "below_minimum",
    "no marker": "no_marker",
    "a loss at the provider": "provider_side",
    "subagents": None,
}
#: Bytes of system text, so that a prompt is just above its provider's minimum.
_GUIDE = {"anthropic": 2300, "openai_responses": 3800, "openai_chat": 3800, "deepseek": 300}
#: Copies for one of each other: requests of all sizes are in a log.
_OFTEN = {"deepseek": 4}
#: Where the rules do not make a script lose anything.
_NEITHER = (("deepseek", "below the minimum"),)
#: Conversations that only their names tell apart: those that no longer begin with their first
#: message, and those that all begin with the same one.
_NAMED = ("a compaction", "subagents", "below the minimum")
_FILES = 4
#: What may be planted: a byte for each record.
_KINDS: tuple[CauseKind | None, ...] = tuple(dict.fromkeys(CAUSE.values()))
Planted: TypeAlias = dict[str, bytearray]
"""By file: the number of the cause in each line."""


class Template(NamedTuple):
    """A conversation with the emulator, to be copied."""

    script: str
    lines: tuple[bytes, ...]
    answers: tuple[bytes, ...]
    """The ids of the answers."""
    expected: tuple[CauseKind | None, ...]


def prompt(place: str) -> Json:
    found = spec()
    found["system"][1] = found["system"][1][: _GUIDE[place]]
    found["tools"][0]["description"] = f"Can read for {ID.decode()}."
    found["messages"][0] = ("user", [f"What is in the file {ID.decode()}?"])
    found["messages"][2] = ("user", ["And in this one? " + "A line of it, and one more. " * 24])
    return found


def subagents(talk: Conversation) -> None:
    """Two subagents begin alike; the second reads what the first has written."""
    talk.send()
    for at in range(3):
        other = {**talk.prompt, "system": ["You search.", talk.prompt["system"][1] + "Search."]}
        other["messages"] = [("user", [f"Search for {at}, please."])]
        talk.send(prompt=other)
    talk.turn()


def templates() -> list[Template]:
    found = []
    pairs = [*every_script(), ("anthropic", "subagents"), ("deepseek", "subagents")]
    for place, name in pairs:
        if name not in CAUSE or (place, name) in _NEITHER:
            continue
        talk = Conversation(place, prompt(place))
        (subagents if name == "subagents" else SCRIPTS[name])(talk)
        lines, answers, expected = [], [], []
        for number, exchange in enumerate(talk.exchanges):
            lines.append(exchange.line(talk.place.provider))
            answers.append(re.search(rb'"id":\s*"([^"]+)"', exchange.answer).group(1))  # type: ignore[union-attr]
            planted = talk.planted[number] and (
                talk.losses[number] or CAUSE[name] in ("below_minimum", "no_marker")
            )
            expected.append(CAUSE[name] if planted else None)
        template = Template(name, tuple(lines), tuple(answers), tuple(expected))
        found += [template] * _OFTEN.get(place, 1)
    return found


def own_id(number: int) -> bytes:
    """Digits and letters at the places of `ID`, so that the number of tokens stays."""
    out = bytearray()
    for byte in ID:
        number, rest = divmod(number, 10 if chr(byte).isdigit() else 6)
        out.append((48 if chr(byte).isdigit() else 97) + rest)
    return bytes(out)


def write_fleet(folder: Path, records: int, seed: int = 7) -> Planted:
    """Writes at least this number of records; returns what was planted, by file and line."""
    chosen, source = templates(), random.Random(seed)
    files = [(folder / f"gateway-{number}.jsonl") for number in range(_FILES)]
    opened = [file.open("wb") for file in files]
    planted: Planted = {str(file): bytearray() for file in files}
    number = written = 0
    while written < records:
        template = chosen[number % len(chosen)]
        own, later = own_id(number), source.uniform(0, 86_400)
        for at, line in enumerate(template.lines):
            answer = template.answers[at]
            tail = b"%08x" % (number * 64 + at)
            line = line.replace(ID, own).replace(answer, answer[: -len(tail)] + tail)
            named = number % 2 or template.script in _NAMED
            more = b'{"account":"team-%d",' % (number % 97)
            more += b'"conversation":"c-%b",' % own if named else b""
            moment = json.loads(line[line.rindex(b'"time":') + 7 : line.rindex(b',"duration"')])
            head, _, end = line.rpartition(b'"time":')
            end = end[end.index(b",") :]
            line = more + head[1:] + b'"time":%.3f' % (moment + later) + end
            turn = (number + at) % _FILES
            opened[turn].write(line + b"\n")
            planted[str(files[turn])].append(_KINDS.index(template.expected[at]))
        number += 1
        written += len(template.lines)
    for file in opened:
        file.close()
    return planted


def found_causes(out: Path) -> Iterator[tuple[str, str, CauseKind | None]]:
    """Place, verdict and cause of each row."""
    columns = ["place", "verdict", "cause", "loss_cause"]
    for batch in pq.ParquetFile(out).iter_batches(columns=columns):
        for row in batch.to_pylist():
            cause = row["loss_cause"]
            if cause is None and row["verdict"] in ("partial", "miss", "not_cacheable"):
                cause = row["cause"]
            yield row["place"], row["verdict"], cause


def compare(planted: Planted, out: Path) -> tuple[float, int]:
    """The share of planted causes that are found, and the number of false ones."""
    wanted = Counter(_KINDS[kind] for kinds in planted.values() for kind in kinds)
    found: Counter[Any] = Counter()
    false: Counter[Any] = Counter()
    rows = 0
    for place, verdict, cause in found_causes(out):
        file, _, line = place.rpartition(":")
        expected = _KINDS[planted[file][int(line) - 1]]
        rows += 1
        if cause == expected:
            found[expected] += 1
        elif cause is not None:
            false[expected, cause, verdict] += 1
    print(f"{'planted':18}{'calls':>9}{'found':>9}")
    for cause in sorted(wanted, key=str):
        print(f"{cause or 'nothing':18}{wanted[cause]:9,}{found[cause]:9,}")
    for (expected, cause, verdict), count in false.items():
        print(f"  false: {count} of {expected} are {cause} ({verdict})")
    if rows != wanted.total():
        raise SystemExit(f"{rows} rows of {wanted.total()} records")
    losses = sum(count for cause, count in wanted.items() if cause is not None)
    named = sum(count for cause, count in found.items() if cause is not None)
    return named / losses, false.total()


def cpu() -> float:
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def measured(records: int, options: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    try:
        planted = write_fleet(folder, records)
        size = sum(file.stat().st_size for file in folder.glob("*.jsonl"))
        began, clock = cpu(), time.perf_counter()
        out = folder / "rows.parquet"
        report = usage_of_logs(
            [str(folder)], by="model", on=options.on, out=str(out), processes=options.processes
        )
        spent, taken = cpu() - began, time.perf_counter() - clock
        share, false = compare(planted, out)
    finally:
        shutil.rmtree(folder)
    count = sum(map(len, planted.values()))
    each = 1e6 * spent / count
    print(
        f"{count:,} records of {size / count / 1000:.1f} KB: {each:.0f} µs of CPU each,"
        f" {taken:.1f} s, ${report.total.usd:,.2f}, lost ${report.total.lost_usd:,.2f}\n"
    )
    return {"records": count, "us": each, "found": share, "false": false, "bytes": size / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--on", default="")
    parser.add_argument("--records", type=int, nargs="+")
    options = parser.parse_args()
    sizes = options.records or ([10**4, 10**5, 10**6] if options.full else [2_000, 5_000, 20_000])
    measured(500, options)  # imports, and tables that are read once
    runs = [measured(size, options) for size in sizes]
    usages = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    most = max(resource.getrusage(who).ru_maxrss for who in usages)
    result = {
        "planted_causes_found": min(run["found"] for run in runs),
        "planted_false": max(run["false"] for run in runs),
        "fleet_growth": round(runs[-1]["us"] / runs[0]["us"], 3),
        "fleet_mb": round(most / 1024),
        "records": runs[-1]["records"],
        "body_bytes": round(runs[-1]["bytes"]),
        "records_per_core_second": round(1e6 / runs[-1]["us"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
