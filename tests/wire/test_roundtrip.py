"""What the round trip of tests/support finds: a request or a response that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.rich import PATHS, REQUESTS
from support.roundtrip import RecordedExchange, RoundTripResult, rules

GOOD: dict[str, Any] = {
    "id": "good",
    "wire": "anthropic",
    "status": 200,
    "stream": False,
    "request": json.dumps(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "hi"}],
        }
    ),
    "response": json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 1},
        }
    ),
}


def check(**changed: Any) -> RoundTripResult:
    return rules.check(RecordedExchange(**(GOOD | changed)))


def test_good_exchange() -> None:
    outcome = check()
    assert outcome.good
    assert "text content is a list with one text block" in outcome.overlooked


def test_failures_are_named() -> None:
    assert check(request='{"model":"m"}').unparsed == "$.messages: is missing"
    assert check(response='{"type":"message"}').unreadable == "$.content: is missing"


#: Bodies that some proxy put in place of an answer.
NO_ANSWERS = [
    "",
    "<html>Bad gateway</html>",
    "upstream timed out",
    "[1",
    "5",
    '"text"',
    "null",
    "[]",
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_invalid_response_is_reported(name: str, status: int, stream: bool) -> None:
    request = json.dumps(REQUESTS[name])
    odd = {"wire": name, "status": status, "stream": stream, "request": request}
    odd["path"] = PATHS.get(name, "")
    for body in NO_ANSWERS:
        outcome = check(**odd, response=body)
        assert outcome.unreadable or outcome.lost, body


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_invalid_request_is_reported(body: str) -> None:
    assert check(request=body).unparsed
