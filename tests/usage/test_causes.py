"""Planted causes in session files of each program: `usage losses` finds exactly these."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from msgspec import convert
from msgspec.structs import replace
from support.planted_sessions import CANARY, WRITERS, Call, claude_code, codex, write
from support.session_bills import shared_names, shared_session

from anaphora.analysis.trace import read
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.log_lines import FoundTrace, numbered
from anaphora.analysis.trace.programs import PROGRAMS, ProgramName
from anaphora.analysis.trace.verdicts import judge_bills, judge_traces
from anaphora.cache.verdict import CauseKind, Verdict
from anaphora.cache.verdict.advice import CAUSES, advice
from anaphora.catalog.pricing import PriceBook
from anaphora.cli.common import anaphora

Found = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def _own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def losses(*files: Path) -> dict[str, Any]:
    """What the command prints as JSON."""
    ran = CliRunner().invoke(anaphora, ["usage", "losses", "--json", *map(str, files)])
    assert ran.exit_code == 0, ran.output
    assert CANARY not in ran.output
    printed = json.loads(ran.stdout)
    assert isinstance(printed, dict)
    return printed


def causes(*files: Path) -> Found:
    return sorted((row["cause"], row["tokens"]) for row in losses(*files)["causes"])


def chain(*more: Call, model: str = "claude-sonnet-4-5") -> list[Call]:
    """A session of three calls in 5 minutes, each of which reads all before it."""
    begun = [
        Call(0, 0, 30_000, model=model),
        Call(60, 30_000, 500, model=model),
        Call(120, 30_500, 500, model=model),
    ]
    return [*begun, *more]


IDLE = Call(2000, 0, 31_500)
SWITCHED = Call(180, 0, 31_500, model="claude-opus-4-6")
MARKED = ["claude_code", "copilot", "opencode", "pi"]


@pytest.mark.parametrize("program", MARKED)
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (None, []),
        (Call(180, 31_000, 500), []),
        (IDLE, [("expired", 31_000)]),
        (SWITCHED, [("model_changed", 31_000)]),
        (Call(180, 4_000, 27_500), [("unknown", 27_000)]),
    ],
)
def test_programs_with_marked_prompts(
    program: str, call: Call | None, expected: Found, tmp_path: Path
) -> None:
    calls = chain() if call is None else chain(call, Call(call.at + 60, call.total, 400))
    if call is not None and call.model != "claude-sonnet-4-5":
        calls[-1] = calls[-1]._replace(model=call.model)
    file = write(tmp_path / "s.jsonl", WRITERS[program](calls, "ses_1"))
    assert causes(file) == expected


def openai(*calls: Call) -> list[Call]:
    """Calls of gpt-5.5, whose reads are 512k-128 tokens."""
    begun = [Call(0, 0, 0, 23_936), Call(60, 23_936, 0, 600), Call(90, 23_936, 0, 1200, loop=True)]
    return [call._replace(model="gpt-5.5") for call in (*begun, *calls)]


LOST = Call(120, 2_432, 0, 23_000)
AGAIN = Call(120, 24_960, 0, 8_200, loop=True), Call(130, 24_960, 0, 9_000, loop=True)


@pytest.mark.parametrize(
    ("calls", "expected", "said"),
    [
        ((), [], ""),
        ((Call(120, 24_960, 0, 900, loop=True),), [], ""),
        ((Call(120, 23_936, 0, 9000, loop=True),), [("provider_side", 1_024)], "older call's"),
        (AGAIN, [("provider_side", 8_192)], "older call's"),
        ((LOST._replace(loop=True),), [("unknown", 22_528)], "not recorded"),
        ((LOST._replace(at=600),), [("unknown", 22_528)], "not recorded"),
        ((LOST._replace(at=13_050),), [("expired", 22_528)], "probably expired (pause of 3.6 h)"),
        ((LOST._replace(effort="xhigh"),), [("parameter_changed", 22_528)], "from high to xhigh"),
    ],
)
def test_codex(calls: tuple[Call, ...], expected: Found, said: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rollout-1.jsonl", codex(openai(*calls), "c1"))
    assert causes(file) == expected
    assert said in "".join(one["sentence"] for one in losses(file)["most_expensive"])


COMMAND: dict[str, Any] = {"version": "2.1.39", "permissionMode": "default"}
TYPED = {**COMMAND, "thinkingMetadata": {"maxThinkingTokens": 31_999}}


def text(words: str, **fields: object) -> dict[str, Any]:
    """A prompt with a text of its own."""
    return {**TYPED, "message": {"role": "user", "content": words}, **fields}


SKILL, EXIT = "Base directory for this skill: /s", "<command-name>/exit</command-name>"
MISSED = Call(180, 9_000, 22_500, prompt=TYPED)


@pytest.mark.parametrize(
    ("changes", "cause", "said"),
    [
        ({"effort": "high"}, "parameter_changed", "effort changed from medium to high"),
        ({"effort": "high", "at": 4000}, "expired", "expired"),
        ({"diagnosis": "tools_changed"}, "tools_changed", "the provider reports"),
        ({"diagnosis": "system_changed"}, "system_changed", "the provider reports"),
        ({"diagnosis": "messages_changed"}, "history_edited", "the provider reports"),
        ({"diagnosis": "model_changed"}, "model_changed", "the provider reports"),
        ({"diagnosis": "unavailable"}, "unknown", "not recorded"),
        ({"read": 30_000, "written": 1_500, "loop": True}, "provider_side", "older call's"),
        ({"read": 30_500, "written": 1_000, "loop": True}, None, ""),
        ({"prompt": COMMAND}, "thinking_changed", "setting changed from 31,999 to none"),
        ({"prompt": {"version": "2.1.50"}}, "unknown", "not recorded"),
        ({"prompt": text(SKILL, isMeta=True)}, "skill_loaded", "a skill was loaded"),
        ({"prompt": text(SKILL, isMeta=True, thinkingMetadata=None)}, "skill_loaded", ""),
        ({"prompt": text(SKILL)}, "unknown", "not recorded"),
        ({"prompt": {**TYPED, "permissionMode": "plan"}}, "mode_changed", "from default to plan"),
        ({"prompt": text(SKILL, isMeta=True), "diagnosis": "tools_changed"}, "tools_changed", ""),
        ({"prompt": text(EXIT)}, "resumed", "resumed 60 s after its last call"),
        ({"prompt": text(EXIT), "diagnosis": "system_changed"}, "resumed", "which agrees"),
        ({"prompt": text(EXIT), "at": 4000}, "expired", "1 more reason"),
        ({"reported": "tools_changed"}, "tools_changed", "Claude Code reports that the tools"),
        ({"reported": "ttl_expired_5m", "at": 4000}, "expired", "ttl_expired_5m, which agrees"),
        ({"reported": "tools_changed", "effort": "high"}, "parameter_changed", "which disagrees"),
        ({"reported": "overage_changed"}, "unknown", "not recorded"),
    ],
)
def test_what_claude_code_records(
    changes: dict[str, Any], cause: str | None, said: str, tmp_path: Path
) -> None:
    calls = [each._replace(effort="medium", prompt=TYPED) for each in chain()]
    last = MISSED._replace(effort="medium")._replace(**changes)
    file = write(tmp_path / "s.jsonl", claude_code([*calls, last], "s1"))
    assert causes(file) == ([] if cause is None else [(cause, 31_000 - last.read)])
    assert said in "".join(one["sentence"] for one in losses(file)["most_expensive"])


@pytest.mark.parametrize("program", ["claude_code", "codex", "pi"])
def test_compaction(program: str, tmp_path: Path) -> None:
    after = Call(400, 9_600, 5_000, compacted=True)
    calls = [*chain(), after]
    if program == "codex":
        after = Call(400, 9_600, 0, 5_000, model="gpt-5.5", compacted=True)
        calls = [*openai(), after]
    file = write(tmp_path / "s.jsonl", WRITERS[program](calls, "s1"))
    assert causes(file) == [("compaction", 5_000)]


def test_prompts_below_the_minimum(tmp_path: Path) -> None:
    calls = [Call(0, 0, 0, 500), Call(60, 0, 0, 600)]
    file = write(tmp_path / "s.jsonl", claude_code(calls, "s1"))
    assert causes(file) == [("below_minimum", 500)]


@pytest.mark.parametrize(("read", "expected"), [(31_000, []), (9_000, [("resumed", 22_000)])])
def test_resumed_in_another_file(read: int, expected: Found, tmp_path: Path) -> None:
    first = claude_code(chain(), "s1")
    last = claude_code(chain(Call(180, read, 31_500 - read)), "s1")[len(first) :]
    again = [{**line, "sessionId": "s2"} for line in (*first, *last)]
    # The ids of answers stay; those of lines are new.
    again = json.loads(json.dumps(again).replace('"s1-', '"s2-'))
    files = write(tmp_path / "s1.jsonl", first), write(tmp_path / "s2.jsonl", again)
    assert causes(*files) == expected


def subagents(tmp_path: Path, firsts: Sequence[Call], kinds: Sequence[str | None]) -> Path:
    folder = tmp_path / "p"
    write(folder / "main.jsonl", claude_code(chain(), "main"))
    for number, (call, kind) in enumerate(zip(firsts, kinds, strict=True)):
        lines = claude_code([call, Call(call.at + 5, call.total, 100)], f"a{number}", kind or "")
        write(folder / "main" / "subagents" / f"agent-a{number}.jsonl", lines)
    return folder


@pytest.mark.parametrize(
    ("firsts", "kinds", "expected"),
    [
        # The second wrote what the first had written, and the third read it.
        ([(10, 0), (40, 0), (90, 12_000)], ["Explore"] * 3, [("subagent", 12_000)]),
        # Nothing shows that the second begins like the first.
        ([(10, 0), (40, 0)], ["Explore"] * 2, []),
        # Of another kind, or of an unknown one.
        ([(10, 0), (40, 0), (90, 12_000)], ["Explore", "Plan", "Explore"], []),
        ([(10, 0), (40, 0), (90, 12_000)], [None] * 3, []),
        # The first one's entry has expired.
        ([(10, 0), (900, 0), (950, 12_000)], ["Explore"] * 3, []),
    ],
)
def test_subagents_that_wrote_the_same_beginning_again(
    firsts: list[tuple[float, int]],
    kinds: list[str | None],
    expected: Found,
    tmp_path: Path,
) -> None:
    calls = [Call(at, read, 14_000 - read) for at, read in firsts]
    assert causes(subagents(tmp_path, calls, kinds)) == expected


def test_every_cause_has_one_name() -> None:
    assert {*CAUSES} == {*get_args(CauseKind)}
    assert len({facts.name for facts in CAUSES.values()}) == len(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_advice_has_a_line_for_each_program(cause: CauseKind) -> None:
    assert advice(cause) == (CAUSES[cause].advice,)
    for program in PROGRAMS:
        (line,) = advice(cause, [program])
        assert line.endswith(".")
        assert "\n" not in line
    lines = advice(cause, PROGRAMS)
    assert len(lines) == len({*lines})
    assert CAUSES[cause].advice in lines or len(lines) == len(PROGRAMS)


@pytest.mark.parametrize("program", ["claude_code", "codex"])
def test_verdicts_without_a_simulation_are_the_same(program: ProgramName) -> None:
    for name in shared_names(program)[:2]:
        lines = numbered(shared_session(program, name), name)
        entries = AnswerIndex().once(name, read(program, lines))
        traces = [entry.trace for entry in entries if isinstance(entry, FoundTrace)]
        prices = PriceBook(0.0)
        simulated, by_bills = {}, {}
        for one in judge_traces(traces, prices.price):
            key = one.predicted.trace, one.predicted.call
            simulated[key] = replace(one.verdict, predicted=None, remedy=None)
        for bill in judge_bills(traces, prices.price, hits=True):
            by_bills[bill.trace.id, bill.call] = replace(bill.verdict, predicted=None, remedy=None)
        assert by_bills == simulated
        lost = {key for key, verdict in simulated.items() if verdict.result not in ("hit", "first")}
        assert lost <= {(one.trace.id, one.call) for one in judge_bills(traces, prices.price)}


def test_gemini_cli(tmp_path: Path) -> None:
    calls = [Call(at, 8_900 if at else 0, 0, 400 if at else 9_000) for at in (0, 20, 40)]
    calls = [call._replace(model="gemini-2.5-pro") for call in calls]
    file = write(tmp_path / "session-1.jsonl", WRITERS["gemini_cli"](calls, "g1"))
    assert causes(file) == []


def test_dollars_of_causes_are_those_of_the_calls(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", claude_code(chain(IDLE), "s1"))
    report = losses(file)
    (row,) = report["causes"]
    # Written for 5 minutes instead of read: 3.75 less 0.30 dollars a million.
    assert float(row["usd"]) == pytest.approx(31_000 * 3.45e-6)
    assert float(report["total"]["lost_usd"]) == pytest.approx(31_000 * 3.45e-6)
    assert any("promptCacheTtl" in line for line in row["advice"])


def test_text_of_prompts_is_not_shown_for_a_session(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", claude_code(chain(IDLE), "s1"))
    for more in (["--json"], []):
        ran = CliRunner().invoke(anaphora, ["usage", "session", "s1", *more, str(file)])
        assert ran.exit_code == 0, ran.output
        assert CANARY not in ran.output


def request(**arguments: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {} for name in arguments}}
    used = {"type": "tool_use", "id": "a", "name": "t", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "a", "content": CANARY}
    marker = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "s " * 4000, **marker}],
        "tools": [{"name": "t", "input_schema": schema}],
        "messages": [
            {"role": "user", "content": CANARY},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [{**result, **marker}]},
        ],
    }


@pytest.mark.parametrize("arguments", [{CANARY: "b"}, {"a": "b"}, {CANARY: "a", "c": "d"}])
def test_outlined_sentence_has_no_names_of_fields(
    arguments: dict[str, str], tmp_path: Path
) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    first.write_text(json.dumps(request(**{CANARY: "a"})))
    second.write_text(json.dumps(request(**arguments)))
    ran = CliRunner().invoke(anaphora, ["explain", "--json", str(first), str(second)])
    _, turn = json.loads(ran.stdout)["turns"]
    verdict = convert(turn["verdict"], Verdict, strict=False)
    assert verdict.change is not None
    assert CANARY[-5:] in verdict.describe()
    assert CANARY[-5:] not in verdict.describe(outlined=True)


@pytest.mark.parametrize(
    ("pause", "hour", "saved"), [(2000, 0, True), (4000, 0, False), (4000, 1, False)]
)
def test_a_longer_lifetime_is_advised_if_it_pays(
    pause: float, hour: int, saved: bool, tmp_path: Path
) -> None:
    """Not after more than an hour, nor for what lived an hour already."""
    calls = chain()
    for _ in range(4):
        calls.append(Call(calls[-1].at + pause, 0, calls[-1].total + 500))
    lines = claude_code(calls, "s1")
    for usage in (line["message"]["usage"] for line in lines if line["type"] == "assistant"):
        written = usage["cache_creation_input_tokens"] * hour
        usage["cache_creation"] = {"ephemeral_1h_input_tokens": written}
    found = losses(write(tmp_path / "s.jsonl", lines))
    # Read at 0.30 instead of written for an hour at 6; all writes cost 6 instead of 3.75.
    lost, written = found["total"]["lost"], sum(call.written for call in calls)
    net = (lost * (6 - 0.3) - written * (6 - 3.75)) / 1e6
    assert float(found["avoidable_usd"]) == pytest.approx(net * saved)
    advice = str(found["causes"])
    assert ("promptCacheTtl" in advice, "Compact" in advice) == (saved, not saved)


def test_bills_of_which_the_file_has_a_part_are_marked(tmp_path: Path) -> None:
    """A subagent's reply without its end, and a session of Copilot that was killed."""
    lines = claude_code(chain(), "s1")
    for number, line in enumerate(line for line in lines if line["type"] == "assistant"):
        line["message"]["stop_reason"] = None if number else "end_turn"
    killed = [line for line in WRITERS["copilot"](chain(), "c1") if "usage_record" not in str(line)]
    for line in killed:
        line["data"]["outputTokens"] = 20
    files = write(tmp_path / "s.jsonl", lines), write(tmp_path / "c.jsonl", killed)
    figures = {
        row["name"]: (row["calls"], row["partial"], row["output"])
        for row in losses(*files)["programs"]
    }
    assert figures == {"claude_code": (3, 2, 60), "copilot": (3, 3, 60)}
    page = CliRunner().invoke(anaphora, ["usage", *map(str, files)]).output
    assert "5 calls with only a part of the tokens in the file" in page
    assert re.search(r"^Claude Code +3 .* \$0\.\d+\+$", page, re.MULTILINE)
