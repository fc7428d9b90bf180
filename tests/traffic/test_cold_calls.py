"""`ColdCalls` on the emulator's engine: what it calls cold is what the bill shows as not read."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.proxy.cold_guard import ColdCalls
from anaphora.traffic.calls import LoggedCall, ProxyRoute, UpstreamRequest
from anaphora.traffic.sent_requests import request_of

START = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC).timestamp()
GUIDE = "You plan journeys, and say so in one line. " * 400
MARK = {"cache_control": {"type": "ephemeral"}}
#: Of the input, if the guard says that less than half of the cached part is left.
HALF = 0.5


def anthropic(history: list[str], *, marked: bool) -> dict[str, Any]:
    mark = MARK if marked else {}
    messages: list[Any] = [
        {"role": ("user", "assistant")[number % 2], "content": [{"type": "text", "text": text}]}
        for number, text in enumerate(history)
    ]
    messages[-1]["content"][0] |= mark
    system = [{"type": "text", "text": GUIDE, **mark}]
    model = "claude-sonnet-4-5"
    return {"model": model, "max_tokens": 9, "system": system, "messages": messages}


def openai(history: list[str], *, marked: bool) -> dict[str, Any]:
    said = [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(history)]
    return {"model": "gpt-5.2", "messages": [{"role": "system", "content": GUIDE}, *said]}


PROVIDERS: dict[str, tuple[Any, str, str]] = {
    "anthropic": (anthropic, "/v1/messages", "anthropic"),
    "openai": (openai, "/v1/chat/completions", "openai_chat"),
}
#: The branch that goes on, the pause before it, and whether it begins anew.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([1.0, 60.0, 200.0, 290.0, 310.0, 1900.0, 4000.0, 90_000.0, 200_000.0]),
        st.integers(0, 9).map(lambda number: number == 0),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("provider", PROVIDERS)
@given(steps=STEPS, marked=st.booleans())
@settings(deadline=None, max_examples=40)
def test_what_is_called_cold_was_not_read(
    provider: str, steps: list[tuple[int, float, bool]], marked: bool
) -> None:
    build, path, wire = PROVIDERS[provider]
    engine, calls = Engine(EmulatorOptions()), ColdCalls(Decimal(0))
    branches: list[list[str]] = [[] for _ in range(3)]
    headers = (("x-api-key", "any"), ("authorization", "Bearer any"), ("anthropic-version", "1"))
    route = ProxyRoute(prefix="/x", provider=provider, upstream="https://example.com")
    now = START
    for number, (branch, pause, anew) in enumerate(steps):
        now += pause
        history = branches[branch]
        if anew or not history:
            history = branches[branch] = [] if anew else [*branches[0]]
        history.append(f"{number}: I have been there before. " * 40)
        body = json.dumps(build(history, marked=marked)).encode()
        found = calls.find(
            UpstreamRequest(
                method="POST", route=route, path=path, query="", headers=headers,
                number=number, started=now, body=body,
            )
        )  # fmt: skip
        if found is not None:
            calls.allow(found)
        answer = engine.respond(
            EmulatorRequest(
                method="POST", path=path, query={}, headers=dict(headers), body=body, now=now
            )
        )
        assert answer.status == 200, answer.body
        logged = LoggedCall(
            request=body, response=answer.body, wire=wire, provider=provider, path=path,
            headers=dict(headers), started=now, began=now,
        )  # fmt: skip
        sent = request_of(logged, "").sent
        calls.ended(number, sent, answered=True)
        usage = sent.usage
        assert usage is not None
        if found is not None:
            assert (usage.read or 0) < HALF * (usage.input or 0)
        history.append("Yes.")
