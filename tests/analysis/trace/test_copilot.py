"""Session files of GitHub Copilot CLI, with events as version 1.0.102 writes them against the
emulator, and as versions before 1.0.100 did."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from anaphora.analysis.trace import detect, read
from anaphora.analysis.trace.format import Trace, TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, TraceEntry, numbered

Json = dict[str, Any]


def chained(*events: tuple[str, Json]) -> list[Json]:
    """Events with ids, each behind the one before it, a second apart."""
    lines: list[Json] = []
    for number, (type, data) in zip(count(), events, strict=False):
        parent = lines[-1]["id"] if lines else None
        at = f"2026-11-02T09:{number // 60:02}:{number % 60:02}.000Z"
        made = {"type": type, "data": data, "id": f"e{number}", "timestamp": at}
        lines.append({**made, "parentId": parent})
    return lines


START = ("session.start", {"sessionId": "s", "selectedModel": "claude-sonnet-4-5"})
SYSTEM = ("system.message", {"role": "system", "content": "You help."})
TURN = ("assistant.turn_start", {"turnId": "0"})


def user(text: str = "q") -> tuple[str, Json]:
    return "user.message", {"content": text, "transformedContent": f"<now/>{text}"}


def usage(id: str, input: int, read: int = 0, write: int = 0, **more: Any) -> tuple[str, Json]:
    counts = {"inputTokens": input, "cacheReadTokens": read, "cacheWriteTokens": write}
    own = {"model": "claude-sonnet-4-5", "modelProvider": "anthropic", "apiCallId": id}
    made = {**own, **counts, "outputTokens": 9, "duration": 500, "timeToFirstTokenMs": 250.0}
    return "session.usage_record", {"usage": {**made, **more}}


def reply(id: str, *tools: str, **more: Any) -> tuple[str, Json]:
    requests = [{"toolCallId": tool, "name": "bash", "arguments": {"c": 1}} for tool in tools]
    own = {"messageId": f"m {id}", "apiCallId": id, "model": "claude-sonnet-4-5"}
    return "assistant.message", {**own, "content": f"a {id}", "toolRequests": requests, **more}


def result(tool: str, **more: Any) -> tuple[str, Json]:
    return "tool.execution_complete", {"toolCallId": tool, "result": {"content": "ok"}, **more}


def entries(*events: tuple[str, Json]) -> list[TraceEntry]:
    data = [json.dumps(one).encode() for one in chained(*events)]
    return list(read("copilot", numbered(data, "events.jsonl")))


def traces(*events: tuple[str, Json]) -> list[Trace]:
    found = entries(*events)
    assert not [one for one in found if isinstance(one, Problem)]
    return [one.trace for one in found if isinstance(one, FoundTrace)]


def billed(trace: Trace) -> list[tuple[int, int, int, int | None]]:
    usages = [call.usage or TraceUsage() for call in trace.calls]
    return [(one.input, one.cache_read, one.cache_write_5m, one.output) for one in usages]


THINKING = {"provider": "anthropic-messages", "blocks": [{"type": "thinking", "thinking": "hm"}]}
LOOP = [
    START,
    user(),
    SYSTEM,
    TURN,
    usage("c1", 9000, 0, 8990, reasoningTokens=4),
    reply("c1", "t1", reasoningBlocks=THINKING),
    result("t1"),
    TURN,
    usage("c2", 9100, 8990, 110),
    reply("c2"),
]


def test_a_loop() -> None:
    (trace,) = traces(*LOOP)
    assert [message.role for message in trace.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert trace.messages[1].content == "<now/>q"
    assert trace.messages[2].has_thinking
    # The input includes what was read and written.
    assert billed(trace) == [(10, 0, 8990, 9), (0, 8990, 110, 9)]
    first, second = trace.calls
    assert (first.messages, second.messages) == (2, 4)
    assert first.t is not None
    assert first.t_end is not None
    assert first.t_first is not None
    assert (first.t_end - first.t, first.t_first - first.t) == (0.5, 0.25)
    assert first.usage is not None
    assert first.usage.reasoning == 4
    assert (trace.provider, trace.source, trace.id) == ("anthropic", "copilot", "s#0")


def test_its_events_are_recognised() -> None:
    assert {detect(one) for one in chained(*LOOP)} == {"copilot"}


def test_a_bill_behind_its_reply() -> None:
    (trace,) = traces(
        START, user(), reply("c1"), usage("c1", 9000), user(), reply("c2"), usage("c2", 9)
    )
    assert [call.messages for call in trace.calls] == [1, 3]


def test_a_resumed_session_says_so() -> None:
    resumed = ("session.resume", {"selectedModel": "claude-sonnet-4-5"})
    (trace,) = traces(*LOOP, resumed, user(), usage("c3", 9200, 9100, 100), reply("c3"))
    assert [call.began_by for call in trace.calls] == [None, None, "resume"]


def test_a_compaction_is_billed_and_begins_another_conversation() -> None:
    spent = {"inputTokens": 9300, "cacheReadTokens": 9000, "cacheWriteTokens": 300}
    used = {**spent, "outputTokens": 50, "model": "claude-sonnet-4-5"}
    done = {"success": True, "summaryContent": "so far", "compactionTokensUsed": used}
    compacted = ("session.compaction_complete", {**done, "requestId": "req_1"})
    before, after = traces(*LOOP, compacted, user("next"), usage("c3", 500), reply("c3"))
    assert billed(before)[-1] == (0, 9000, 300, 50)
    assert before.calls[-1].messages == len(before.messages)
    assert [message.content for message in after.messages[:3]] == [
        "You help.",
        "so far",
        "<now/>next",
    ]
    assert [call.began_by for call in after.calls] == ["compaction"]


def test_a_rewind_removes_messages() -> None:
    rewind = ("session.snapshot_rewind", {"upToEventId": "e1"})
    before, after = traces(*LOOP, rewind, user("other"), usage("c3", 9000, 8000), reply("c3"))
    assert len(before.calls) == 2
    assert [message.content for message in after.messages[:2]] == ["You help.", "<now/>other"]
    assert [call.began_by for call in after.calls] == ["edit"]


def test_subagents_are_conversations_of_their_own() -> None:
    sub = {"parentToolCallId": "t1"}
    started = ("user.message", {"content": "look it up", **sub})
    own = usage("x1", 700)
    main, agent = traces(
        *LOOP[:6], started, (own[0], {**own[1], **sub}), reply("x1", **sub), *LOOP[6:]
    )
    assert [len(one.calls) for one in (main, agent)] == [2, 1]
    assert [message.content for message in agent.messages][:1] == ["look it up"]
    assert main.group == agent.group == "s"


def test_a_bill_without_a_reply_counts() -> None:
    found = traces(*LOOP, usage("title", 300))
    assert sorted(map(billed, found)) == [[(10, 0, 8990, 9), (0, 8990, 110, 9)], [(300, 0, 0, 9)]]


def shutdown(**metrics: tuple[int, int]) -> tuple[str, Json]:
    models = {
        model.replace("_", "-").replace("gpt-5-4", "gpt-5.4"): {
            "requests": {"count": number},
            "usage": {"inputTokens": input, "outputTokens": 9, "cacheReadTokens": 0},
        }
        for model, (number, input) in metrics.items()
    }
    return "session.shutdown", {"modelMetrics": models}


def test_the_sums_of_an_older_version_are_the_bill_of_a_single_reply() -> None:
    answer = reply("c1", model="gpt-5.4")
    (trace,) = traces(START, user(), answer, shutdown(gpt_5_4=(1, 9000)))
    assert billed(trace) == [(9000, 0, 0, 9)]
    assert (trace.provider, trace.model) == ("openai", "gpt-5.4")
    # The sums go on when the session is resumed.
    again = reply("c2", model="gpt-5.4")
    (trace,) = traces(
        START,
        user(),
        answer,
        shutdown(gpt_5_4=(1, 9000)),
        user(),
        again,
        shutdown(gpt_5_4=(2, 18_100)),
    )
    assert [one[0] for one in billed(trace)] == [9000, 9100]


def test_sums_of_several_replies_are_no_bill() -> None:
    two = [user(), reply("c1", model="gpt-5.4"), user(), reply("c2", model="gpt-5.4")]
    (problem,) = entries(START, *two, shutdown(gpt_5_4=(2, 18_000)))
    assert str(problem) == (
        "events.jsonl: no reply with token counts; before 1.0.100 Copilot CLI records only their"
        " sums"
    )
    found = entries(START, *two, usage("c3", 9000), reply("c3"))
    assert [str(one) for one in found if isinstance(one, Problem)] == [
        "events.jsonl: 2 replies without token counts"
    ]


@pytest.mark.parametrize(
    "model, served",
    [
        ("claude-sonnet-4.6", ("anthropic", "claude-sonnet-4-6")),
        ("gpt-5.4-mini", ("openai", "gpt-5.4-mini")),
    ],
)
def test_models_of_github_are_those_of_their_makers(model: str, served: tuple[str, str]) -> None:
    made = usage("c1", 9000, model=model, modelProvider=None)
    (trace,) = traces(START, user(), made, reply("c1", model=model))
    assert (trace.provider, trace.model) == served


def test_impossible_counts_are_reported() -> None:
    problem, found = entries(START, user(), usage("c1", 100, 200), usage("c2", 9000), reply("c2"))
    assert str(problem) == "events.jsonl:3: 200 read and 0 written of 100 input tokens"
    assert isinstance(found, FoundTrace)
