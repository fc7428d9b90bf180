"""What `simulate` and `explain` make of the forms of a recording: breakpoints,
unreliable bills, unknown models and providers, sessions of Codex and Gemini CLI."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.three_calls import three_calls, usage

from anaphora.cli.common import anaphora

Json = dict[str, Any]
Log = Callable[..., Path]

#: Long enough for the minimum of any model.
LONG = "All of it matters to the answer. " * 2000


def run(*arguments: object) -> Any:
    return CliRunner().invoke(anaphora, [*map(str, arguments)], catch_exceptions=False)


def report(*arguments: object, code: int = 0) -> Json:
    ran = run(*arguments, "--json")
    assert ran.exit_code == code, ran.stderr
    found: Json = json.loads(ran.stdout)
    return found


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def trace(**changed: Any) -> Json:
    """Three calls, each of which reads what the one before it left."""
    return three_calls(usage(5200, 300), **changed)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    def write(*lines: Json | str, name: str = "log.jsonl") -> Path:
        data = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        (tmp_path / name).write_text(data)
        return tmp_path / name

    return write


TOOLS = [{"name": name, "description": LONG, "input_schema": {}} for name in "abc"]


class TestBreakpoints:
    """One tool of several, and a marker that the provider places."""

    def calls(self, log: Log, *calls: tuple[str, list[Any]], **changed: Any) -> list[Json]:
        """A conversation for each of (question, breakpoints), one after the other."""
        lines = []
        for at, (question, breakpoints) in enumerate(calls):
            call = {"t": 1000.0 + 10 * at, "messages": 1, "breakpoints": breakpoints}
            messages = [{"role": "user", "content": question}]
            lines.append(
                trace(
                    id=f"talk {at}",
                    group="one",
                    tools=TOOLS,
                    system_tokens_unknown=False,
                    messages=messages,
                    calls=[call],
                    **changed,
                )
            )
        rows: list[Json] = report("simulate", log(*lines))["rows"]
        return [row["predicted"] for row in rows]

    @pytest.mark.parametrize("index, share", [(0, 1 / 3), (1, 2 / 3), (2, 1.0)])
    def test_marker_on_a_tool_caches_the_tools_up_to_it(
        self, log: Log, index: int, share: float
    ) -> None:
        marked = [["tools", index, "5m"]]
        first, second = self.calls(log, ("one", marked), ("two", marked))
        all_tools = sum(first[name] for name in ("read", "written", "uncached"))
        assert first["written"] == second["read"] == pytest.approx(all_tools * share, rel=0.03)
        assert first["read"] == second["written"] == 0

    def test_tool_without_an_index_is_the_last_one(self, log: Log) -> None:
        forms: list[list[Any]] = [["tools"], ["tools", "5m"], ["tools", 2], ["tools", 2, "5m"]]
        (written,) = {self.calls(log, ("q", [form]))[0]["written"] for form in forms}
        assert written > 0

    def test_ttl_of_a_marker_is_obeyed(self, log: Log) -> None:
        later = [("one", [["tools", 2, "1h"]])] + [("two", [["tools", 2, "1h"]])] * 40
        assert self.calls(log, *later)[-1]["read"] > 0
        shorter = (
            [("one", [["tools", 2, "5m"]])] + [("two", [])] * 39 + [("x", [["tools", 2, "5m"]])]
        )
        assert self.calls(log, *shorter)[-1]["read"] == 0

    def test_automatic_marker_lands_on_the_last_block(self, log: Log) -> None:
        automatic, behind = [["automatic", "5m"]], [[0, "5m"]]
        assert self.calls(log, ("q", automatic), ("q", automatic)) == self.calls(
            log, ("q", behind), ("q", behind)
        )
        first, second = self.calls(log, ("q", automatic), ("q", automatic))
        assert second["read"] == first["written"] > 0
        assert second["uncached"] == first["uncached"]

    def test_no_marker_at_all_caches_nothing(self, log: Log) -> None:
        assert [one["written"] for one in self.calls(log, ("q", []), ("q", []))] == [0, 0]

    @pytest.mark.parametrize(
        "written",
        [
            ["system", "5m"],
            ["tools", -1, "5m"],
            [0, "7m"],
            ["automatic", "5m", 1],
            [],
            [None],
            [True],
        ],
    )
    def test_other_forms_are_rejected_with_what_was_written(self, log: Log, written: Any) -> None:
        calls = [{"messages": 1, "breakpoints": [written]}]
        ran = run("simulate", log(trace(calls=calls)))
        assert ran.exit_code == 2
        assert f"breakpoint {json.dumps(written, separators=(',', ':'))} is not" in words(
            ran.stderr
        )

    @pytest.mark.parametrize("written", [[4, "5m"], ["tools", 3, "5m"]])
    def test_marker_on_what_was_not_sent_is_left_out_with_a_notice(
        self, log: Log, written: Any
    ) -> None:
        calls = [{"messages": 1, "breakpoints": [written, [0, "5m"]]}]
        found = report("simulate", log(trace(calls=calls, tools=TOOLS)))
        (notice,) = found["notices"]
        shown = json.dumps([written], separators=(",", ":"))
        assert f"calls[0].breakpoints {shown} are on nothing that was sent" in notice["reason"]
        assert found["rows"][0]["predicted"]["written"] > 0

    def test_explain_reads_them_too(self, log: Log) -> None:
        marks = [["tools", 1, "5m"], ["automatic", "5m"]]
        calls = [{**call, "breakpoints": marks} for call in trace()["calls"]]
        file = log(trace(calls=calls, tools=TOOLS))
        assert [turn["verdict"]["result"] for turn in report("explain", file)["turns"]] == [
            "first",
            "hit",
            "hit",
        ]


class TestUnreliableUsage:
    wrong = usage(777, 12345)

    def marked(self, **changed: Any) -> Json:
        calls = trace()["calls"]
        calls[1] = {**calls[1], "usage": self.wrong, **changed}
        return trace(calls=calls)

    def test_bill_is_neither_compared_nor_learned_from(self, log: Log) -> None:
        file = log(self.marked(usage_unreliable=True))
        found = report("simulate", file)
        assert [row["billed"] is None for row in found["rows"]] == [False, True, False]
        # As if the call had no bill at all.
        without = report("simulate", log(self.marked(usage=None), name="without.jsonl"))
        assert [row["predicted"] for row in found["rows"]] == [
            row["predicted"] for row in without["rows"]
        ]
        trusted = report("simulate", log(self.marked(), name="trusted.jsonl"))
        assert trusted["rows"][2]["predicted"] != found["rows"][2]["predicted"]

    def test_output_names_the_calls_and_the_reason(self, log: Log) -> None:
        file = log(self.marked(usage_unreliable="the gateway counts twice"))
        (one,) = report("simulate", file)["not_compared"]
        assert one["reason"] == "usage_unreliable at 1 call (2): the gateway counts twice"
        assert one["place"] == f"{file}:1"
        assert "Not compared: 1" in run("simulate", file).stdout
        assert "usage_unreliable at 1 call" in run("explain", file).stderr

    def test_whole_conversation(self, log: Log) -> None:
        file = log(trace(usage_unreliable=True))
        found = report("simulate", file)
        assert {row["billed"] for row in found["rows"]} == {None}
        assert found["not_compared"][0]["reason"] == "usage_unreliable at 3 calls (1, 2, 3)"
        assert found["total"]["billed_calls"] == 0


class TestUnknownModels:
    @pytest.mark.parametrize("command", ["simulate", "explain"])
    def test_stand_in_rows_are_used_with_a_notice(self, log: Log, command: str) -> None:
        file = log(trace(model="claude-99"), trace(id="other", model="claude-99"))
        found = report(*command.split(), file)
        notice = found["notices"][0]
        text = notice if isinstance(notice, str) else notice["reason"]
        assert len(found["notices"]) == 1
        assert (
            "unknown model 'claude-99' of anthropic: simulated with the stand-in rows of anthropic"
            " (and 1 more conversation)" in text
        )
        ran = run(*command.split(), file)
        assert "stand-in rows of anthropic" in words(ran.stdout + ran.stderr)

    def test_calls_are_predicted_and_compared(self, log: Log) -> None:
        rows = report("simulate", log(trace(model="claude-99")))["rows"]
        assert [row["exact"] for row in rows] == [True, True, True]

    def test_model_of_a_single_call(self, log: Log) -> None:
        calls = trace()["calls"]
        calls[2]["model"] = "claude-100"
        (notice,) = report("simulate", log(trace(calls=calls)))["notices"]
        assert "unknown model 'claude-100'" in notice["reason"]

    def test_known_models_have_no_notice(self, log: Log) -> None:
        assert report("simulate", log(trace()))["notices"] == []


def codex_session(provider: str, model: str = "gpt-5.5") -> list[Json]:
    def item(second: int, **payload: Any) -> Json:
        at = f"2026-11-02T09:00:{second:02}.000Z"
        return {"timestamp": at, "type": "response_item", "payload": {"type": "message", **payload}}

    def count(second: int, input: int, cached: int) -> Json:
        last = {"input_tokens": input, "cached_input_tokens": cached, "output_tokens": 7}
        info = {"last_token_usage": last, "total_token_usage": {"total_tokens": second}}
        at = f"2026-11-02T09:00:{second:02}.000Z"
        return {
            "timestamp": at,
            "type": "event_msg",
            "payload": {"type": "token_count", "info": info},
        }

    return [
        {"type": "session_meta", "payload": {"id": "c", "model_provider": provider}},
        {"type": "turn_context", "payload": {"model": model}},
        item(0, role="user", content=[{"type": "input_text", "text": "q"}]),
        item(4, role="assistant", content=[{"type": "output_text", "text": "a"}]),
        count(5, 9000, 0),
        item(6, role="user", content=[{"type": "input_text", "text": "q2"}]),
        item(9, role="assistant", content=[{"type": "output_text", "text": "a2"}]),
        count(10, 9300, 8960),
    ]


class TestUnknownProviders:
    @pytest.mark.parametrize("command", ["simulate", "explain"])
    def test_exit_2_says_how_to_name_one(self, log: Log, command: str) -> None:
        ran = run(*command.split(), log(trace(provider="nobody")))
        assert ran.exit_code == 2
        assert "unknown provider 'nobody'; name one with --provider" in words(ran.stderr)
        assert "(claude-sonnet-4-5 is a model of anthropic)" in words(ran.stderr)

    @pytest.mark.parametrize("command", ["simulate", "explain"])
    def test_others_are_played_and_the_exit_code_is_2(self, log: Log, command: str) -> None:
        file = log(trace(), trace(id="other", provider="nobody"))
        ran = run(*command.split(), file, "--json")
        assert ran.exit_code == 2
        assert f"{file}:2: unknown provider 'nobody'" in ran.stderr
        assert json.loads(ran.stdout)

    @pytest.mark.parametrize("command", ["simulate", "explain"])
    def test_provider_option_names_it(self, log: Log, command: str) -> None:
        file = log(trace(provider="nobody"))
        found = report(*command.split(), file, "--provider", "anthropic")
        assert found["notices"] == []
        calls = found.get("rows") if command == "simulate" else found.get("turns")
        if calls is not None:
            assert [call["provider"] for call in calls] == ["anthropic"] * 3

    def test_recorded_provider_is_replaced_with_a_notice(self, log: Log) -> None:
        found = report("simulate", log(trace(model="MiniMax-M2")), "--provider", "minimax")
        assert {row["provider"] for row in found["rows"]} == {"minimax"}
        assert [one["reason"] for one in found["notices"]] == [
            "recorded as a call to anthropic, simulated as one to minimax"
        ]

    def test_codex_session_with_a_custom_provider(self, log: Log) -> None:
        file = log(*codex_session("my-gateway"))
        ran = run("simulate", file)
        assert ran.exit_code == 2
        assert "unknown provider 'my-gateway'" in ran.stderr
        assert "(gpt-5.5 is a model of openai)" in words(ran.stderr)
        rows = report("simulate", file, "--provider", "openai")["rows"]
        assert [(row["provider"], row["billed"]["read"]) for row in rows] == [
            ("openai", 0),
            ("openai", 8960),
        ]

    def test_request_log(self, log: Log) -> None:
        line = {
            "provider": "my-gateway",
            "request": {"model": "gpt-4o", "messages": [{"role": "user", "content": "q"}]},
            "response": {
                "id": "r",
                "model": "gpt-4o",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": "a"},
                    }
                ],
                "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
            },
        }
        for command in ("simulate", "explain"):
            ran = run(command, log(line))
            assert ran.exit_code == 2
            assert "unknown provider 'my-gateway'; name one with --provider" in words(ran.stderr)
            assert report(command, log(line), "--provider", "openai")


def gemini(id: str, second: int, type: str, content: Any, **more: Any) -> Json:
    at = f"2026-11-02T09:00:{second:02}.000Z"
    return {"id": id, "timestamp": at, "type": type, "content": content, **more}


def tokens(input: int, cached: int) -> Json:
    return {"input": input, "output": 5, "cached": cached, "thoughts": 2, "tool": 0, "total": 0}


GEMINI_META = {
    "sessionId": "g1",
    "projectHash": "ab12",
    "startTime": "2026-11-02T09:00:00.000Z",
    "lastUpdated": "2026-11-02T09:00:30.000Z",
}
GEMINI_CALL = {
    "id": "t1",
    "name": "read_file",
    "args": {"file": "a"},
    "status": "success",
    "timestamp": "2026-11-02T09:00:06.000Z",
    "result": [
        {"functionResponse": {"id": "t1", "name": "read_file", "response": {"output": "x"}}}
    ],
}
GEMINI_MESSAGES = [
    gemini("m0", 0, "info", "a newer version is available"),
    gemini("m1", 1, "user", [{"text": "q"}]),
    gemini(
        "m2",
        5,
        "gemini",
        "I will look.",
        toolCalls=[GEMINI_CALL],
        model="gemini-2.5-pro",
        tokens=tokens(9000, 0),
    ),
    gemini("m3", 9, "gemini", "It says x.", model="gemini-2.5-pro", tokens=tokens(9300, 8900)),
]


def other(messages: list[Json], session: str) -> list[Json]:
    """The messages as those of another session, whose ids differ."""
    return [{**message, "id": f"{session} {message['id']}"} for message in messages]


class TestGeminiCli:
    def checked(self, found: Json) -> None:
        assert [(row["call"], row["billed"]["read"]) for row in found["rows"]] == [
            (0, 0),
            (1, 8900),
        ]
        assert {row["provider"] for row in found["rows"]} == {"google"}
        assert [row["billed"]["uncached"] for row in found["rows"]] == [9000, 400]
        assert {row["billed"]["output"] for row in found["rows"]} == {7}
        assert found["rows"][1]["in_loop"]
        assert (found["skipped"], found["notices"]) == ([], [])

    @pytest.mark.parametrize("indent", [None, 2])
    def test_one_object(self, log: Log, indent: int | None) -> None:
        whole = json.dumps({**GEMINI_META, "messages": GEMINI_MESSAGES}, indent=indent)
        self.checked(report("simulate", log(whole, name="session-1.json")))

    def test_lines(self, log: Log) -> None:
        without_tokens = {key: val for key, val in GEMINI_MESSAGES[2].items() if key != "tokens"}
        lines = [
            GEMINI_META,
            *GEMINI_MESSAGES[:2],
            without_tokens,
            {"$set": {"lastUpdated": "2026-11-02T09:00:05.000Z"}},
            *GEMINI_MESSAGES[2:],
        ]
        self.checked(report("simulate", log(*lines, name="session-1.jsonl")))

    def test_folder_of_both_forms(self, log: Log, tmp_path: Path) -> None:
        log(json.dumps({**GEMINI_META, "messages": GEMINI_MESSAGES}, indent=2), name="a.json")
        log({**GEMINI_META, "sessionId": "g2"}, *other(GEMINI_MESSAGES, "g2"), name="b.jsonl")
        assert report("simulate", tmp_path)["total"]["calls"] == 4

    def test_explain_reads_several_files(self, log: Log) -> None:
        files = [
            log(
                json.dumps(
                    {**GEMINI_META, "sessionId": name, "messages": other(GEMINI_MESSAGES, name)}
                ),
                name=name,
            )
            for name in ("a.json", "b.json")
        ]
        assert len(report("explain", *files)["turns"]) == 4

    @pytest.mark.parametrize("command", ["explain", "simulate"])
    def test_answers_that_both_forms_have_count_once(
        self, log: Log, tmp_path: Path, command: str
    ) -> None:
        log(json.dumps({**GEMINI_META, "messages": GEMINI_MESSAGES}), name="a.json")
        log({**GEMINI_META, "sessionId": "g2"}, *GEMINI_MESSAGES, name="b.jsonl")
        found = report(command, tmp_path)
        assert len(found["turns" if command == "explain" else "rows"]) == 2
        (notice,) = map(str, found["notices"])
        assert "2 answers repeated from" in notice

    def test_session_without_tokens_is_exit_2(self, log: Log) -> None:
        ran = run("simulate", log(GEMINI_META, GEMINI_MESSAGES[1]))
        assert ran.exit_code == 2
        assert "no reply with token counts" in ran.stderr
