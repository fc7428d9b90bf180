"""Runs the parts of cachebench and writes their results.

A part is a module of this folder with

    def run(progress: Progress, quick: bool) -> dict[str, Any]
    def headline(found: dict[str, Any]) -> dict[str, Any]      # optional

`run` may raise `Unavailable`, whose reason is recorded. The key "versions" of what it returns goes
to the top of the results file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from importlib import import_module
from pathlib import Path
from typing import Any

from strangers.environment import Unavailable

from anaphora.version import __version__

from .progress import Progress

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "benchmarks" / "results.json"
#: Where a quick run writes: its figures are not for the docs.
QUICK_RESULTS = ROOT / "build" / "cachebench.json"
SCHEMA_VERSION = 1
#: The parts in their order, with the seconds that each usually takes on two cores.
PARTS = {"peers": 420.0, "gateways": 240.0, "engine": 90.0, "ourselves": 150.0, "picture": 5.0}


def machine() -> dict[str, Any]:
    return {
        "cpu": _line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _line(path: str, name: str) -> str:
    """The value of the first line `name: value` of a file."""
    file = Path(path)
    for line in file.read_text().splitlines() if file.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def run_part(name: str, progress: Progress, quick: bool) -> dict[str, Any]:
    """The result of a part, or `{"skipped": reason}`."""
    try:
        found: dict[str, Any] = import_module(f"cachebench.{name}").run(progress, quick)
    except Unavailable as problem:
        progress.note(f"skipped: {problem}")
        return {"skipped": str(problem)}
    return found


def headline(parts: dict[str, Any]) -> dict[str, Any]:
    """The figures of all parts that were measured, by the part's own choice."""
    found: dict[str, Any] = {}
    for name, result in parts.items():
        if "skipped" in result:
            found[name] = result
            continue
        choose = getattr(import_module(f"cachebench.{name}"), "headline", None)
        if choose is not None:
            found[name] = choose(result)
    return found


def read(path: Path) -> dict[str, Any]:
    """The results file, or an empty one; a file of another schema is not merged with."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found.get("schema_version") == SCHEMA_VERSION:
            return found
    return {"schema_version": SCHEMA_VERSION, "versions": {}, "parts": {}}


def write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    partial.replace(path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare Anaphora with its peers.")
    parser.add_argument("--quick", action="store_true", help="a few calls of everything")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, by comma")
    parser.add_argument("--results", type=Path, help=f"the file to write; {RESULTS} otherwise")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"--only: expected some of {', '.join(PARTS)}, got {', '.join(unknown)}")
    path = options.results or (QUICK_RESULTS if options.quick else RESULTS)
    # A run of all parts replaces the file.
    results = read(path) if len(set(chosen)) < len(PARTS) else read(Path(os.devnull, "none"))
    waiting = [name for name in PARTS if name in chosen]
    while waiting:
        name = waiting.pop(0)
        later = 0.0 if options.quick else sum(PARTS[each] for each in waiting)
        found = run_part(name, Progress(name, later), options.quick)
        results["versions"] = {
            **results["versions"],
            "anaphora": __version__,
            **found.pop("versions", {}),
        }
        results["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        results["machine"] = machine()
        results["parts"][name] = {"quick": True, **found} if options.quick else found
        write(path, results)
    print(f"results: {path}")
    print(json.dumps(headline({name: results["parts"][name] for name in PARTS if name in chosen})))
