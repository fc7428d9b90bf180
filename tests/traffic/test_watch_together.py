"""Calls that wait are judged together: the verdicts are those of calls judged one by one."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from support.planted import GUIDE, PLACES, body, grown, spec
from support.socket_upstream import CallList

from anaphora.emulator.server import Emulator
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import running
from anaphora.traffic.calls import RelayedCall, ResponsePiece
from anaphora.traffic.judging import Judge

_PATHS = {
    "anthropic": "/anthropic/v1/messages",
    "openai_chat": "/openai/v1/chat/completions",
    "openai_responses": "/openai/v1/responses",
    "gemini": "/google/v1beta/models/gemini-2.5-pro:generateContent",
}


def conversations() -> Iterator[tuple[str, bytes]]:
    """Turns of a conversation on each wire in turn; the third says another date."""
    prompts = [spec(), grown(spec()), grown(grown(spec()))]
    prompts[2]["system"][0] = prompts[2]["system"][0].replace("2026-11-15", "2026-11-16")
    for prompt in prompts:
        for name in _PATHS:
            yield name, body(PLACES[name], prompt)


def post(url: str, data: bytes) -> bytes:
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    headers |= dict.fromkeys(("x-api-key", "x-goog-api-key", "authorization"), "Bearer key")
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
        answer: bytes = response.read()
    return answer


@pytest.fixture
def calls(emu: Emulator) -> list[RelayedCall]:
    """Calls that were relayed: turns, a chain of streamed responses, one that cannot be read and
    one that is no call of a model."""
    seen = CallList()
    upstreams = {name: f"{emu.url}/{name}" for name in ("anthropic", "openai", "google")}
    with running(default_routes(upstreams), observers=[seen]) as proxy:
        for name, data in conversations():
            post(proxy.url + _PATHS[name], data)
        previous: dict[str, Any] = {}
        for text in (GUIDE, "And then?", "And after that?"):
            fields = {"model": "gpt-5", "input": text, "stream": True, **previous}
            answer = post(proxy.url + _PATHS["openai_responses"], json.dumps(fields).encode())
            first = json.loads(answer.partition(b"data: ")[2].partition(b"\n")[0])
            previous = {"previous_response_id": first["response"]["id"]}
    (*relayed, last) = seen.calls
    broken = replace(last, number=last.number + 1, request_body=b"{")
    other = replace(last, number=last.number + 2, path="/v1/models", method="GET")
    return [*relayed, last, broken, other]


def shown(judge: Judge) -> list[Any]:
    """All that a judge says."""
    return [
        *(call.fields() for call in judge.calls),
        *(str(call) for call in judge.calls),
        str(judge.savings.result()),
        str(judge.summary()),
    ]


def judged(calls: Sequence[RelayedCall], together: int) -> Judge:
    judge = Judge()
    for at in range(0, len(calls), together):
        judge.prepare(calls[at : at + together])
        for call in calls[at : at + together]:
            judge.call_ended(call)
    return judge


@pytest.mark.parametrize("together", [1, 2, 5, 100])
def test_verdicts_are_the_same_one_by_one(calls: list[RelayedCall], together: int) -> None:
    alone = Judge()
    for call in calls:
        alone.call_ended(call)
    assert [call.kind for call in alone.calls] == ["judged"] * 15 + ["not_judged", "other"]
    assert any(call.broke for call in alone.calls)
    assert alone.calls[14].turn == 3, "the chain is known"
    assert shown(judged(calls, together)) == shown(alone)


def test_verdicts_of_breaks_have_their_remedies(calls: list[RelayedCall]) -> None:
    lines: list[Any] = []
    judge = Judge(lambda call: lines.append(call.verdict and call.verdict.remedy))
    for call in calls:
        judge.call_ended(call)
    assert lines == [call.verdict and call.verdict.remedy for call in judge.calls]
    assert all(remedy for remedy, call in zip(lines, judge.calls, strict=True) if call.broke)
    worst = judge.summary().worst
    assert worst
    assert all(call.verdict and call.verdict.remedy for call in worst)


def test_prompt_of_the_last_call_is_that_call_s(calls: list[RelayedCall]) -> None:
    """Observers that follow the judge look at it, whatever was read ahead."""
    judge, alone = Judge(), Judge()
    judge.prepare(calls)
    for call in calls:
        judge.call_ended(call)
        alone.call_ended(call)
        sizes = [each and each.rendered.size for each in (judge.last_sent, alone.last_sent)]
        assert sizes[0] == sizes[1]


def test_failure_is_raised_for_its_own_call(calls: list[RelayedCall]) -> None:
    """An error of the judge itself: the calls beside it have their verdicts."""
    wrong: Any = "not bytes"
    calls[3] = replace(calls[3], pieces=[ResponsePiece(0.0, wrong)])
    judge = Judge()
    judge.prepare(calls)
    for at, call in enumerate(calls):
        if at == 3:
            with pytest.raises(TypeError):
                judge.call_ended(call)
        else:
            judge.call_ended(call)
    kinds = [call.kind for call in judge.calls]
    assert kinds == ["judged"] * 14 + ["not_judged", "other"]


def test_calls_that_were_not_prepared_are_judged(calls: list[RelayedCall]) -> None:
    """One after which others were prepared is judged from its beginning."""
    judge = Judge()
    judge.prepare(calls[:1])
    judge.prepare(calls[1:2])
    for call in calls[:3]:
        judge.call_ended(call)
    assert [call.kind for call in judge.calls] == ["judged"] * 3
