"""The SDKs for Node and agent programs through the proxy: the provider gets what it gets without it,
and a recorded run is replayed on another day, in another directory, without a provider and a key.

The programs are those of test_strangers.py; where one cannot be installed, its tests are skipped.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from strangers import programs
from strangers.environment import Unavailable
from strangers.environment import programs as programs_of
from strangers.more_agents import AGENTS
from strangers.tap import Tap, TappedRequest
from support.missing import skip_without
from support.recordings import reported

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script

HERE = Path(__file__).resolve().parent
CANARY = "sk-canary-0123456789abcdef"
_TIMEOUT = 240
_FINAL = "The marker is 4711."

#: Moves the clock of a dynamically linked program by 40 days.
_ANOTHER_DAY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#define SHIFT (40L * 24 * 3600)
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (!code && clock == CLOCK_REALTIME) at->tv_sec += SHIFT;
    return code;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return code;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


class ProxiedProgram(NamedTuple):
    """A program, the words of each turn, its variables, and where its base URL goes."""

    turns: tuple[tuple[str, ...], ...]
    variables: dict[str, str]
    address: str
    """A variable; or an argument, with {url} in it, after the first word."""
    path: str = ""
    script: str = ""
    """The name in `strangers.programs` whose replies are scripted."""
    exact: bool = False
    """Two runs send the same bytes."""


_SDK = ("node", str(HERE / "strangers" / "through_sdks.cjs"))
_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), CANARY)


def _agent(name: str, address: str, path: str = "") -> ProxiedProgram:
    """A program of strangers/more_agents.py, with its second turn if it has one."""
    program = AGENTS[name]
    turns = [(*program.command, *words) for words in (program.words, program.again) if words]
    return ProxiedProgram(tuple(turns), dict(program.variables), address, path, script=name)


PROGRAMS = {
    "anthropic for Node": ProxiedProgram(
        ((*_SDK, "anthropic"),), {}, "ANTHROPIC_BASE_URL", exact=True
    ),
    "openai for Node": ProxiedProgram(
        ((*_SDK, "openai"),), {}, "OPENAI_BASE_URL", "/v1", exact=True
    ),
    "genai for Node": ProxiedProgram(
        ((*_SDK, "google"),), {}, "GOOGLE_GEMINI_BASE_URL", exact=True
    ),
    "Claude Code": _agent("Claude Code", "ANTHROPIC_BASE_URL"),
    "Codex": _agent("Codex", 'openai_base_url="{url}"', "/v1"),
    "Gemini CLI": _agent("Gemini CLI", "GOOGLE_GEMINI_BASE_URL"),
}
_GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"disableAutoUpdate": True},
    "skills": {"enabled": False},
}


class Place:
    """A home and a working directory, in which a program is run."""

    def __init__(self, program: ProxiedProgram, root: Path, work: str) -> None:
        self.program, self.home = program, root
        self.work = root / work
        self.work.mkdir(parents=True)
        (root / ".gemini").mkdir()
        (root / ".gemini" / "settings.json").write_text(json.dumps(_GEMINI_SETTINGS))

    def run(self, turn: int, *before: str, url: str = "", **more: str) -> Any:
        """One turn, after the words of `before`, with the provider at `url`."""
        npm = programs_of("npm")
        program, words = self.program, list(self.program.turns[turn])
        environ = {
            "PATH": os.pathsep.join((str(npm), os.environ.get("PATH", ""))),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "CODEX_HOME": str(self.home),
            "LANG": "C.UTF-8",
            "NODE_PATH": str(npm.parent),
            **program.variables,
        }
        if url:
            environ |= {**_KEYS, "CODEX_API_KEY": CANARY}
            if "{url}" in program.address:
                words[1:1] = ["-c", program.address.format(url=f"{url}{program.path}")]
            else:
                environ[program.address] = f"{url}{program.path}"
        if before:
            environ["PYTHONPATH"] = str(HERE.parent / "src")
            words = [sys.executable, "-m", "anaphora", *before, "--", *words]
        if preload := more.pop("LD_PRELOAD", ""):
            # For the program alone.
            at = words.index("--") + 1
            words[at:at] = ["env", f"LD_PRELOAD={preload}"]
        return subprocess.run(
            words,
            cwd=self.work,
            env={**environ, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )


@pytest.fixture(scope="module")
def another_day() -> Iterator[dict[str, str]]:
    """An environment in which the date is another one: by the time zone, and where a C compiler is
    there, by a clock that is 40 days ahead."""
    now = datetime.datetime.now(datetime.UTC)
    changed = {"TZ": "Etc/GMT+12" if now.hour < 12 else "Pacific/Kiritimati"}
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "day.c", Path(folder) / "day.so"
        source.write_text(_ANOTHER_DAY)
        compiler = shutil.which("cc")
        if compiler is not None:
            words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
            if not subprocess.run(words, check=False, capture_output=True).returncode:
                changed["LD_PRELOAD"] = str(library)
        yield changed


@pytest.fixture
def folders() -> Iterator[Path]:
    # Some programs are still writing when they have ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def comparable(passed: list[TappedRequest], *, exact: bool) -> list[Any]:
    """What two runs of a program have in common. The proxy itself refuses WebSockets."""
    requests = [one for one in passed if "sec-websocket-key" not in dict(one.headers)]
    if exact:
        return requests
    return [
        (one.method, one.path, [name for name, _ in one.headers], _outline(one.body))
        for one in requests
    ]


def _outline(body: bytes) -> Any:
    try:
        found = json.loads(body)
    except ValueError:
        return body
    return list(found) if isinstance(found, dict) else found


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_through_the_proxy(name: str, folders: Path, another_day: dict[str, str]) -> None:
    program = PROGRAMS[name]
    try:
        programs_of("npm")
    except Unavailable as problem:
        skip_without(problem)
    text = programs.PROGRAMS[program.script].script if program.script else "replies: []\n"
    options = EmulatorOptions(script=Script.decode(text, f"the script of {name}"))
    made = folders / "made"
    turns = range(len(program.turns))
    answers = []
    with emulator.running(options) as emu, contextlib.closing(Tap(emu.url)) as tap:
        direct = Place(program, folders / "direct", "work")
        watched = Place(program, folders / "watched", "work")
        recorded = Place(program, folders / "recorded", "work")
        for turn in turns:
            plain = direct.run(turn, url=tap.url)
            assert plain.returncode == 0, plain.stdout + plain.stderr
            expected = comparable(tap.requests(), exact=program.exact)
            log = folders / f"watch{turn}.jsonl"
            seen = watched.run(turn, "watch", "--json", "--log", str(log), url=tap.url)
            assert seen.returncode == 0, seen.stdout + seen.stderr
            assert comparable(tap.requests(), exact=program.exact) == expected
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            assert [line for line in lines if line["type"] == "call"]
            assert CANARY not in log.read_text()
            done = recorded.run(turn, "record", "--dir", str(made), url=tap.url)
            assert done.returncode == 0, done.stdout + done.stderr
            assert reported(done.stderr)[0] > 0
            assert "not recorded: " not in done.stderr
            answers.append(done.stdout)
            tap.requests()
            if program.script and not turn:
                assert _FINAL in done.stdout
    for file in made.iterdir():
        assert CANARY.encode() not in file.read_bytes(), file.name
    elsewhere = Place(program, folders / "elsewhere" / "far away", "another project")
    for turn in turns:
        done = elsewhere.run(turn, "replay", "--dir", str(made), **another_day)
        assert done.returncode == 0, done.stdout + done.stderr
        _, replayed, misses = reported(done.stderr)
        assert replayed > 0
        assert not misses
        assert done.stdout == answers[turn]
    if program.script:
        # Date and directory are other ones: without the rules nothing is found.
        rules = folders / "none.toml"
        rules.write_text("shipped_rules = false\n")
        words = ("--dir", str(made), "--rules", str(rules))
        done = elsewhere.run(0, "replay", *words, **another_day)
        print(name, done.stderr)
        assert reported(done.stderr)[2]
        assert done.returncode != 0
