"""Agent programs and command lines that we did not write, as clients of the emulator.

Each runs without a terminal in a home of its own: a prompt whose scripted reply calls a tool, the
program's answer with the tool's result, and a second turn, which has to read the cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.session_bills import calls_once

from anaphora import emulator
from anaphora.cli.log_files import gather
from anaphora.emulator import EmulatorOptions, Script
from anaphora.emulator.server import Emulator
from anaphora.usage.places import session_files

from .environment import programs
from .more_agents import AIDER_MODELS
from .results import CaseResult, Verdict

#: Seconds that one run of a program may take.
_TIMEOUT = 240
#: Where programs keep data, by the specification for desktops.
_XDG = ("DATA", "CONFIG", "CACHE", "STATE")
#: What a tool prints, and the reply once that came back.
_PRINTED, _FINAL = "marker-4711", "The marker is 4711."
_TOOL_TURN = """
  - match: {{text: Count the files, tool: {tool}}}
    reply: {{tool_calls: [{{name: {tool}, arguments: {arguments}}}]}}
  - match: {{result_of: {tool}, result: marker-4711, tool: {tool}}}
    reply: {{text: The marker is 4711.}}
"""
_LONG = "A beginning that stays the same. " * 400


class ProgramRun:
    """One program with its emulator and its home. `variables` are all that it gets beside PATH."""

    def __init__(self, name: str, emu: Emulator, folder: Path, home: Path) -> None:
        self.name, self.emu, self.folder, self.home = name, emu, folder, home
        self.variables: dict[str, str] = {}
        self.results: list[CaseResult] = []
        self._seen = 0

    def run(self, program: str, *words: str, work: str = "work", may_fail: bool = False) -> str:
        """The output of a program that is run in a folder of its home. Another status than 0 is a
        failure."""
        (self.home / work).mkdir(exist_ok=True)
        path = os.pathsep.join((str(self.folder), os.environ.get("PATH", "")))
        base = {"PATH": path, "HOME": str(self.home), "TMPDIR": str(self.home), "LANG": "C.UTF-8"}
        done = subprocess.run(
            [str(self.folder / program), *words],
            cwd=self.home / work,
            env={**base, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if not done.returncode:
            return done.stdout
        output = f"{done.stdout}\n{done.stderr}"
        if not may_fail:
            self.check(f"`{program} {words[0]}` succeeds", False, f"{done.returncode}: {output}")
        return output

    def calls(self) -> list[dict[str, Any]]:
        """The journal's entries since the last time, the oldest first."""
        entries = [entry for entry in self.emu.requests()[::-1] if entry["number"] > self._seen]
        self._seen = max((entry["number"] for entry in entries), default=self._seen)
        return entries

    def check(self, case: str, passed: bool, reason: str, otherwise: Verdict = "failed") -> None:
        result = CaseResult(self.name, case, "passed") if passed else None
        self.results.append(result or CaseResult(self.name, case, otherwise, reason[-600:]))

    def check_accepted(self, case: str, calls: list[dict[str, Any]], *statuses: int) -> None:
        """Every call was accepted, or answered with one of `statuses`."""
        rejected = [one for one in calls if one["status"] not in (200, *statuses)]
        rejections = "; ".join(f"{one['status']} {one['path']}: {one['error']}" for one in rejected)
        self.check(case, bool(calls) and not rejected, rejections or "no request arrived")

    def check_hit(self, case: str, calls: list[dict[str, Any]], cause: str | None = None) -> None:
        """The last call read the cache, and the journal says so: all of it, or with `cause`, why
        not."""
        billed = [one for one in calls if "verdict" in one]
        last = billed[-1] if billed else None
        expected = ("hit", None) if cause is None else ("partial", cause)
        found = (last["verdict"]["result"], last["verdict"]["cause"]) if last is not None else None
        read = last is not None and found == expected and last["read"] > 0
        self.check(case, read, str(last["verdict"]) if last is not None else "no call was billed")

    def check_sessions(self, place: Path, source: str, *, unrecorded: int = 0) -> None:
        """The session files hold each call that the emulator billed once, with its bill, but for so
        many that the program does not record."""
        found, problems = gather([place], None)
        wrong = [str(one) for one in problems if not one.harmless]
        usages = [call.usage for one in found for call in one.trace.calls if call.usage]
        read = Counter((one.input, one.cache_read, one.written, one.output or 0) for one in usages)
        billed = Counter(
            (one["uncached"], one["read"], sum(one["written"].values()), one["output"])
            for one in self.emu.requests()
            if "verdict" in one
        )
        quick = [
            (one.uncached, one.read, one.input - one.uncached - one.read, one.output)
            for one in calls_once(session_files((place,), {}, place, problems), problems)
        ]
        wrong += [str(one) for one in problems if not one.harmless]
        missing, added = billed - read, read - billed
        self.check(
            "its bills are those of its conversations",
            Counter(quick) == read,
            f"missing {read - Counter(quick)}, added {Counter(quick) - read}",
        )
        named = {one.trace.source for one in found} == {source}
        self.check(
            "its session files hold the bills",
            named and not wrong and not added and missing.total() == unrecorded,
            f"missing {missing}, added {added}, problems {wrong}",
        )


def claude_code(run: ProgramRun) -> None:
    run.variables = {
        "ANTHROPIC_BASE_URL": run.emu.url,
        "ANTHROPIC_API_KEY": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }
    # Models that take system messages in mid-conversation get one at the end of each request, with
    # the marker on it, which the provider does not find again (anthropics/claude-code#96101).
    causes = {"claude-sonnet-4-5": None, "claude-opus-4-8": "marker_on_trailing_system"}
    for model, cause in causes.items():
        words = ("--model", model, "--allowedTools", "Bash")
        output = run.run("claude", "-p", "Count the files.", *words, work=model)
        calls = run.calls()
        run.check(f"{model}: the tool runs and its result comes back", _FINAL in output, output)
        run.check_accepted(f"{model}: no request is rejected", calls)
        run.check_hit(f"{model}: the tool's result reads the cache", calls, cause)
        run.run("claude", "-p", "And again?", "--continue", *words, work=model)
        calls = run.calls()
        run.check_accepted(f"{model}: no request of the second turn is rejected", calls)
        run.check_hit(f"{model}: --continue reads the cache", calls, cause)
    run.check_sessions(run.home / ".claude" / "projects", "claude_code")


def codex(run: ProgramRun) -> None:
    run.variables = {"CODEX_HOME": str(run.home), "CODEX_API_KEY": "any", "OPENAI_API_KEY": "any"}
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    settings = (f'openai_base_url="{run.emu.url}/v1"', "analytics.enabled=false")
    words = [*options, *(word for one in settings for word in ("-c", one)), "-m", "gpt-5.1"]
    output = run.run("codex", "exec", *words, "Count the files.")
    calls = run.calls()
    run.check("the tool runs and its result comes back", _FINAL in output, output)
    # Its WebSocket attempt gets a 426, and HTTP is used at once.
    run.check_accepted("no request is rejected", calls, 426)
    attempts = [one for one in calls if one["method"] == "GET" and one["status"] == 426]
    run.check("one WebSocket attempt", len(attempts) == 1, f"{len(attempts)} attempts")
    run.check_hit("the tool's result reads the cache", calls)
    run.run("codex", "exec", "resume", "--last", *words, "And again?")
    calls = run.calls()
    run.check_accepted("no request of the second turn is rejected", calls, 426)
    run.check_hit("resume reads the cache", calls)
    run.check_sessions(run.home / "sessions", "codex")


def gemini_cli(run: ProgramRun) -> None:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True},
        # It lists its skills in an order that differs from run to run, which breaks the cache.
        "skills": {"enabled": False},
    }
    (run.home / ".gemini").mkdir()
    (run.home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    run.variables = {"GOOGLE_GEMINI_BASE_URL": run.emu.url, "GEMINI_API_KEY": "any"}
    options = ("--skip-trust", "--yolo")
    # Without -m each prompt is first routed to a model, by a call with an output schema.
    output = run.run("gemini", *options, "-p", "Count the files.")
    calls = run.calls()
    run.check("the tool runs and its result comes back", _FINAL in output, output)
    run.check_accepted("no request is rejected", calls)
    run.check_hit("the tool's result reads the cache", calls)
    named = (*options, "-m", "gemini-3.1-pro-preview")
    run.run("gemini", *named, "-p", "Hello?", work="other")
    run.run("gemini", *named, "--resume", "latest", "-p", "And again?", work="other")
    calls = run.calls()
    run.check_accepted("no request of the second turn is rejected", calls)
    run.check_hit("--resume reads the cache", calls)
    output = run.run("gemini", *named, "--resume", "latest", "-p", "And again?", may_fail=True)
    nothing = {"status": None, "error": output}
    last = (run.calls() or [nothing])[-1]
    repeated = (
        "gemini-cli sends each functionResponse twice when it resumes a conversation with tool "
        "calls, which Google refuses as well (google-gemini/gemini-cli#29365)"
    )
    refused = last["status"] == 400 and "number of function response parts" in last["error"]
    reason = repeated if refused else f"{last['status']} {last['error']}"
    verdict: Verdict = "refused" if refused else "failed"
    run.check("--resume after a tool call", last["status"] == 200, reason, verdict)


def opencode(run: ProgramRun) -> None:
    folders = {f"XDG_{name}_HOME": str(run.home / name.lower()) for name in _XDG}
    run.variables = {**folders, "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    options = {"baseURL": f"{run.emu.url}/v1", "apiKey": "any"}
    settings = {
        "provider": {name: {"options": options} for name in ("anthropic", "openai")},
        "permission": "allow",
        "share": "disabled",
        "autoupdate": False,
    }
    (run.home / "config" / "opencode").mkdir(parents=True)
    (run.home / "config" / "opencode" / "opencode.json").write_text(json.dumps(settings))
    for model in ("anthropic/claude-sonnet-4-5", "openai/gpt-5.1"):
        work = model.partition("/")[0]
        output = run.run("opencode", "run", "--model", model, "Count the files.", work=work)
        calls = run.calls()
        run.check(f"{work}: the tool runs and its result comes back", _FINAL in output, output)
        run.check_accepted(f"{work}: no request is rejected", calls)
        run.run("opencode", "run", "--continue", "--model", model, "And again?", work=work)
        calls += run.calls()
        run.check_hit(f"{work}: --continue reads the cache", calls)
        run.run("opencode", "run", "--continue", "--fork", "--model", model, "Other?", work=work)
        run.check_accepted(f"{work}: no request of a fork is rejected", [*calls, *run.calls()])
    # A title is made for each session, by a call that is not recorded.
    run.check_sessions(run.home / "data" / "opencode", "opencode", unrecorded=2)


def copilot(run: ProgramRun) -> None:
    run.variables = {
        "COPILOT_HOME": str(run.home / "copilot"),
        "COPILOT_OFFLINE": "true",
        "COPILOT_ALLOW_ALL": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_BASE_URL": run.emu.url,
        "COPILOT_PROVIDER_TYPE": "anthropic",
        "COPILOT_PROVIDER_API_KEY": "any",
        "COPILOT_MODEL": "claude-sonnet-4-5",
    }
    output = run.run("copilot", "-p", "Count the files.")
    calls = run.calls()
    run.check("the tool runs and its result comes back", _FINAL in output, output)
    # A reply without thinking makes it leave out `thinking` in the next request of a tool loop.
    cause = "parameter_changed"
    run.check_hit("the tool's result reads the cache", calls, cause)
    run.run("copilot", "--continue", "-p", "And again?")
    calls += run.calls()
    run.check_accepted("no request is rejected", calls)
    run.check_hit("--continue reads the cache", calls, cause)
    run.run("copilot", "--continue", "-p", "/compact")
    run.run("copilot", "--continue", "-p", "And then?")
    run.check_accepted("no request around a compaction is rejected", run.calls())
    run.check_sessions(run.home / "copilot" / "session-state", "copilot")


def pi(run: ProgramRun) -> None:
    folder = run.home / "pi"
    folder.mkdir()
    providers = {"anthropic": {"baseUrl": run.emu.url}, "openai": {"baseUrl": f"{run.emu.url}/v1"}}
    (folder / "models.json").write_text(json.dumps({"providers": providers}))
    run.variables = {
        "PI_CODING_AGENT_DIR": str(folder),
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "ANTHROPIC_API_KEY": "any",
        "OPENAI_API_KEY": "any",
    }
    for model in ("anthropic/claude-sonnet-4-5", "openai/gpt-5.1"):
        work = model.partition("/")[0]
        words = ("-p", "--model", model)
        output = run.run("pi", *words, "Count the files.", work=work)
        calls = run.calls()
        run.check(f"{work}: the tool runs and its result comes back", _FINAL in output, output)
        run.run("pi", *words, "--continue", "And again?", work=work)
        calls += run.calls()
        run.check_accepted(f"{work}: no request is rejected", calls)
        run.check_hit(f"{work}: --continue reads the cache", calls)
        (session,) = (folder / "sessions").glob(f"*{work}--/*.jsonl")
        run.run("pi", *words, "--fork", str(session), "Other?", work=work)
        run.check_accepted(f"{work}: no request of a fork is rejected", run.calls())
    run.check_sessions(folder / "sessions", "pi")


def aider(run: ProgramRun) -> None:
    run.variables = {
        "OPENAI_API_KEY": "any",
        "OPENAI_API_BASE": f"{run.emu.url}/v1",
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_API_BASE": run.emu.url,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    off = "check-update show-release-notes analytics git auto-lint show-model-warnings detect-urls"
    options = [*(f"--no-{name}" for name in f"{off} pretty".split()), "--yes-always"]
    options += ["--cache-prompts", "--no-stream"]
    for model in ("anthropic/claude-sonnet-4-5", "openai/gpt-4o"):
        place = model.partition("/")[0]
        file = run.home / place / "program.py"
        file.parent.mkdir()
        file.write_text('print("before")\n')
        (file.parent / "rules.md").write_text(_LONG)
        (file.parent / ".aider.model.settings.yml").write_text(AIDER_MODELS)
        words = [*options, "--model", model, "--read", "rules.md", "--message"]
        output = run.run("aider", *words, "Change the program.", "program.py", work=place)
        calls = run.calls()
        run.check(f"{place}: the file is edited", "after" in file.read_text(), output)
        run.check_accepted(f"{place}: no request is rejected", calls)
        run.run("aider", *words, "And again?", "program.py", work=place)
        calls = run.calls()
        run.check_accepted(f"{place}: no request of the second run is rejected", calls)
        read = [one.get("read", 0) for one in calls]
        run.check(f"{place}: the second run reads the cache", any(read), f"read {read}")


def llm(run: ProgramRun) -> None:
    run.variables = {
        "LLM_USER_PATH": str(run.home / "llm"),
        "OPENAI_API_KEY": "any",
        "OPENAI_BASE_URL": f"{run.emu.url}/v1",
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_BASE_URL": run.emu.url,
    }
    for model in ("gpt-4o-mini", "claude-sonnet-4.5"):
        output = run.run("llm", "-m", model, "-T", "llm_version", "What is llm_version?")
        calls = run.calls()
        generated = [one for one in calls if "verdict" in one]
        # The second call brings the tool's result.
        run.check(f"{model}: a tool is called", len(generated) == 2, output)
        schema = run.run("llm", "-m", model, "--schema", "name, age int", "A dog.")
        run.check(f"{model}: a schema is followed", _is_dog(schema), schema)
        run.check_accepted(f"{model}: no request is rejected", [*calls, *run.calls()])
        run.run("llm", "-m", model, "-s", _LONG, "One?")
        run.run("llm", "-c", "Two?")
        calls = [one for one in run.calls() if "verdict" in one]
        run.check_accepted(f"{model}: no request of a conversation is rejected", calls)
        if not model.startswith("claude"):  # llm-anthropic marks nothing unless it is asked to
            run.check_hit(f"{model}: the second turn reads the cache", calls)


def _is_dog(output: str) -> bool:
    try:
        found = json.loads(output)
    except ValueError:
        return False
    return isinstance(found, dict) and {"name", "age"} <= found.keys()


def _tool_script(tool: str, **arguments: str) -> str:
    turn = _TOOL_TURN.format(tool=tool, arguments=json.dumps(arguments))
    last = f"  - match: {{tool: {tool}}}\n    reply: {{text: Understood.}}\n"
    return f"replies:{turn}{last}"


_EDIT = """replies:
  - match: {text: Change the program}
    reply:
      text: |
        program.py
        ```python
        <<<<<<< SEARCH
        print("before")
        =======
        print("after")
        >>>>>>> REPLACE
        ```
  - reply: {text: Understood.}
"""


class Program(NamedTuple):
    family: str
    package: str
    script: str
    play: Callable[[ProgramRun], None]


_ECHO = f"echo {_PRINTED}"
_BASH = _tool_script("bash", command=_ECHO, description="Print a marker")
PROGRAMS = {
    "Claude Code": Program(
        "npm",
        "@anthropic-ai/claude-code",
        _tool_script("Bash", command=_ECHO, description="Print a marker"),
        claude_code,
    ),
    "Codex": Program("npm", "@openai/codex", _tool_script("exec_command", cmd=_ECHO), codex),
    "Gemini CLI": Program(
        "npm",
        "@google/gemini-cli",
        _tool_script("run_shell_command", command=_ECHO, description="Print a marker"),
        gemini_cli,
    ),
    "opencode": Program("npm-agents", "opencode-ai", _BASH, opencode),
    "GitHub Copilot CLI": Program("npm-agents", "@github/copilot", _BASH, copilot),
    "pi": Program("npm-agents", "@earendil-works/pi-coding-agent", _BASH, pi),
    "aider": Program("aider", "aider-chat", _EDIT, aider),
    "llm": Program("llm", "llm", "replies: []\n", llm),
}


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    # Some programs are still writing when they have ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def play(name: str) -> list[CaseResult]:
    """What a program did; raises `Unavailable` where it cannot be installed."""
    program = PROGRAMS[name]
    folder = programs(program.family)
    script = Script.decode(program.script, f"the script of {name}")
    with emulator.running(EmulatorOptions(script=script)) as emu, _home() as home:
        run = ProgramRun(name, emu, folder, home)
        try:
            program.play(run)
        except subprocess.TimeoutExpired as problem:
            run.check("runs", False, f"took longer than {_TIMEOUT} s: {problem.stderr!r}")
        return run.results
