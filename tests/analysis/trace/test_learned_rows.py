"""Recordings whose reads come in other steps than the catalog says."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.predicted import Predicted

TEXT = "Look at the file and say what it does. " * 500


def conversation(number: int, step: int, *, calls: int = 8, **fields: Any) -> Trace:
    """Calls whose reads are the last prompt in steps of `step`."""
    total, before, made = 5000 + 700 * number, 0, []
    for turn in range(calls):
        read = before // step * step
        usage = {"input": total - read, "cache_read": read, "output": 10, "reasoning": 5}
        at = 100_000.0 * number + 20 * turn
        made.append({"t": at, "messages": 1 + 2 * turn, "usage": usage} | fields.get("call", {}))
        before, total = total, total + 1300
    roles = ("user", "assistant")
    texts = (f"{number} {index} {TEXT}" for index in range(2 * calls))
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    trace = {"id": f"talk {number}", "provider": "openai", "model": "gpt-5.5", "calls": made}
    trace |= {"messages": messages} | {
        name: value for name, value in fields.items() if name != "call"
    }
    return msgspec.convert(trace, Trace)


def played(traces: list[Trace]) -> tuple[Predictor, list[list[Predicted]]]:
    predictor, found = Predictor(), dict[str, list[Predicted]]()
    for call in predictor.play(traces):
        found.setdefault(call.trace, []).append(call)
    return predictor, list(found.values())


def granules(calls: list[Predicted]) -> set[int]:
    return {call.granule for call in calls}


def test_the_next_conversation_is_predicted_in_the_steps_of_the_bills() -> None:
    predictor, calls = played([conversation(number, 600) for number in range(5)])
    assert [granules(each) for each in calls] == [{512}] * 3 + [{600}] * 2
    (row,) = predictor.steps.learned
    text = "learned: reads come in steps of 600; the catalog says 512 less 128"
    assert (row.provider, row.model, row.text) == ("openai", "gpt-5.5", text)


def test_what_a_plain_chain_would_say_is_not_learned() -> None:
    _, calls = played([conversation(number, 600) for number in range(5)])
    for call in calls[4][1:]:
        assert call.baseline is not None
        assert (call.baseline + 128) % 512 == 0


def test_conversations_at_the_same_time_keep_the_rules_they_began_with() -> None:
    """All begin before the first has ended."""
    together = []
    for number in range(5):
        trace = conversation(number, 600)
        calls = [replace(call, t=number + 20.0 * turn) for turn, call in enumerate(trace.calls)]
        together.append(replace(trace, calls=calls))
    assert [granules(each) for each in played(together)[1]] == [{512}] * 5


def test_hosts_of_a_gateway_learn_apart() -> None:
    """The host that it chose last serves the next conversation, as far as is known."""

    def routed(number: int, step: int, host: str) -> Trace:
        model = "deepseek/deepseek-v4-flash"
        return conversation(number, step, provider="openrouter", model=model, call={"note": host})

    traces = [routed(number, 600, "other") for number in range(3)]
    traces += [routed(3, 600, "vendor"), routed(4, 128, "vendor"), routed(5, 600, "other")]
    traces.append(routed(6, 600, "other"))
    predictor, calls = played(traces)
    assert [min(granules(each)) for each in calls] == [128, 128, 128, 600, 128, 128, 600]
    (row,) = predictor.steps.learned
    assert (row.provider, row.granule_tokens) == ("openrouter", 600)
