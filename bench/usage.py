"""`anaphora usage` on recorded session files, copied under new ids; and what it needs of others.

    python bench/usage.py [--bytes N | --full] [--install] [--processes 2]

Needs the recorded sessions in `shared`. CPU is that of all processes, without their start and
imports; decoding is `msgspec.json.decode` of each line, untyped. The last line is one JSON object:

- `totals_vs_decode`, `causes_vs_decode`: CPU of a first run over that of decoding.
- `again_vs_first`: CPU of a run without new lines over that of the first: the larger one of totals
  and causes; `again_totals` and `again_causes` are the two.
- `ccusage_vs_ours`: wall time of `ccusage daily` over that of the same sums without causes,
  both with the files of Claude Code; null with `ccusage_reason` where it is missing. `--install`
  installs it into a temporary folder.
- `statusline_ms_above_python`: CPU time of `anaphora-statusline` above that of `python -c pass`.
- `fleet_growth`, `planted_causes_found`, `planted_false`: of `bench/fleet.py` with few records.
- `*_mb`: the most memory of a process, with all files and with a quarter of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _bytecode import SOURCE, compiled
from _usage_files import SESSIONS, copies

HERE = Path(__file__).parent
DEFAULT, FULL = 250_000_000, 1_000_000_000
ROUNDS = 3
STARTS = 15


class Sizes:
    """The copied files: all of them, and a quarter."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        files = copies(folder / "sessions", size)
        self.bytes = sum(file.stat().st_size for file in files)
        self.all, self.quarter = folder / "all.txt", folder / "quarter.txt"
        self.all.write_text("\n".join(map(str, files)))
        self.quarter.write_text("\n".join(map(str, files[: len(files) // 4])))
        self._indexes = 0

    def index(self) -> Path:
        self._indexes += 1
        return self.folder / f"{self._indexes}.sqlite"


def run(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "_usage_run.py"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def speed(sizes: Sizes, processes: int, rounds: int) -> dict[str, Any]:
    """In alternating rounds; the median of each."""
    seen: dict[str, list[dict[str, Any]]] = {}

    def note(name: str, found: dict[str, Any]) -> None:
        seen.setdefault(name, []).append(found)
        print(f"  {name:14} {found['cpu']:8.2f} s CPU {found['wall']:8.2f} s {found['mb']:6.0f} MB")

    for number in range(rounds):
        note("decode", run("decode", sizes.all))
        index = sizes.index()
        note("totals", run("totals", sizes.all, index, processes))
        note("totals again", run("totals", sizes.all, index, processes))
        if not number:
            with_causes = sizes.index()
            note("causes", run("causes", sizes.all, with_causes, processes))
        note("causes again", run("causes", sizes.all, with_causes, processes))
    cpu = {name: statistics.median(one["cpu"] for one in runs) for name, runs in seen.items()}
    quarters = {
        f"{name}_quarter_mb": run(name, sizes.quarter, sizes.index(), processes)["mb"]
        for name in ("totals", "causes")
    }
    again = [cpu[f"{name} again"] / cpu[name] for name in ("totals", "causes")]
    return {
        "bytes": sizes.bytes,
        "calls": seen["totals"][0]["calls"],
        "decode_s": round(cpu["decode"], 2),
        "totals_vs_decode": round(cpu["totals"] / cpu["decode"], 2),
        "causes_vs_decode": round(cpu["causes"] / cpu["decode"], 2),
        "again_vs_first": round(max(again), 3),
        "again_totals": round(again[0], 3),
        "again_causes": round(again[1], 3),
        **{f"{name}_mb": round(seen[name][0]["mb"]) for name in ("totals", "causes")},
        **{name: round(mb) for name, mb in quarters.items()},
    }


def ccusage(sizes: Sizes, *, install: bool) -> dict[str, Any]:
    """Both from their start to the last line, without an index of ours."""
    program, reason = _ccusage(sizes.folder, install=install)
    if program is None:
        return {"ccusage_vs_ours": None, "ccusage_reason": reason}
    config = sizes.folder / "claude"
    config.mkdir()
    (config / "projects").symlink_to(sizes.folder / "sessions" / "claude_code")
    env = {**os.environ, "CLAUDE_CONFIG_DIR": str(config), "HOME": str(sizes.folder)}
    ours: list[float] = []
    theirs: list[float] = []
    files = sizes.folder / "claude_code.txt"
    files.write_text("\n".join(map(str, (config / "projects").rglob("*.jsonl"))))
    totals = [sys.executable, str(HERE / "_usage_run.py"), "totals", str(files)]
    for _ in range(ROUNDS):
        theirs.append(_wall([str(program), "daily", "--json", "--offline"], env))
        ours.append(_wall([*totals, str(sizes.index()), str(os.cpu_count() or 1)], env))
    print(f"  ccusage {min(theirs):.2f} s, ours {min(ours):.2f} s")
    return {"ccusage_vs_ours": round(statistics.median(theirs) / statistics.median(ours), 2)}


def _ccusage(folder: Path, *, install: bool) -> tuple[Path | None, str]:
    if not (SOURCE / "anaphora" / "cli" / "usage.py").exists():
        return None, "the command `anaphora usage` is missing"
    if found := shutil.which("ccusage"):
        return Path(found), ""
    npm = shutil.which("npm")
    if npm is None:
        return None, "npm is missing"
    if not install:
        return None, "ccusage is missing: pass --install"
    # Its program for this machine is a package of its own, which npm leaves out in silence.
    machine = {"aarch64": "arm64", "x86_64": "x64"}.get(platform.machine(), platform.machine())
    program = folder / "node_modules" / ".bin" / "ccusage"
    for packages in (["ccusage"], ["ccusage", f"@ccusage/ccusage-{sys.platform}-{machine}"]):
        install_ = [npm, "install", "--silent", "--prefix", str(folder), *packages]
        subprocess.run(install_, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if program.exists() and not subprocess.run([program, "--version"], check=False).returncode:
            return program, ""
    return None, "npm does not install a ccusage that runs here"


def _wall(command: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def statusline(folder: Path) -> dict[str, Any]:
    script = SOURCE / "anaphora_statusline.py"
    if not script.exists():
        reason = "the entry point `anaphora-statusline` is missing"
        return {"statusline_ms_above_python": None, "statusline_reason": reason}
    session = next((folder / "sessions" / "claude_code").rglob("*.jsonl"))
    given = {
        "session_id": session.stem,
        "transcript_path": str(session),
        "model": {"id": "claude-opus-5", "display_name": "Opus"},
        "cost": {"total_cost_usd": 1.5},
    }
    (folder / "statusline.json").write_text(json.dumps(given))
    code = "from anaphora_statusline import main; main()"
    spent: dict[str, list[float]] = {"pass": [], code: []}
    for _ in range(STARTS):
        for run_, times in spent.items():
            times.append(_started(run_, folder / "statusline.json"))
    above = statistics.median(spent[code]) - statistics.median(spent["pass"])
    return {"statusline_ms_above_python": round(above * 1000, 1)}


def _started(code: str, given: Path) -> float:
    """CPU seconds of an interpreter that runs the code."""
    with given.open() as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=file, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{code}: ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def fleet(records: list[int]) -> dict[str, Any]:
    names = ("fleet_growth", "planted_causes_found", "planted_false")
    script = HERE / "fleet.py"
    if not script.exists():
        return {**dict.fromkeys(names), "fleet_reason": "bench/fleet.py is missing"}
    command = [sys.executable, str(script), "--records", *map(str, records)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return {**dict.fromkeys(names), "fleet_reason": f"it ended with {done.returncode}"}
    last = json.loads(done.stdout.splitlines()[-1])
    return {name: last.get(name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bytes", type=int, default=DEFAULT)
    parser.add_argument("--full", action="store_true", help="1 GB")
    parser.add_argument("--install", action="store_true", help="install ccusage")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if not SESSIONS.is_dir():
        raise SystemExit(f"{SESSIONS}: the recorded sessions are missing")
    compiled()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        sizes = Sizes(Path(place), FULL if options.full else options.bytes)
        print(f"{sizes.bytes / 1e6:,.0f} MB of session files")
        parts: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: speed(sizes, options.processes, options.rounds),
            lambda: ccusage(sizes, install=options.install),
            lambda: statusline(sizes.folder),
            lambda: fleet([2_000, 10_000]),
        )
        for part in parts:
            result |= part()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
