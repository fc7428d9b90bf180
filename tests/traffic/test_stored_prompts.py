"""A request that names a stored prompt and no model is judged with the model that answered."""

from __future__ import annotations

import json

import pytest

from anaphora import wire
from anaphora.traffic.calls import ProxyRoute, RelayedCall, ResponsePiece
from anaphora.traffic.judging import Judge
from anaphora.traffic.sums import JudgedCall
from anaphora.values import Message, Reply, Usage
from anaphora.wire.replies import reply_events

BODY = json.dumps({"prompt": {"id": "pmpt_1"}, "input": "hi"}).encode()


def judged(body: bytes, *, stream: bool) -> JudgedCall:
    reply = Reply(
        id="resp_1",
        model="gpt-5.2-2025-12-11",
        message=Message.assistant("ok"),
        stop_reason="end",
        usage=Usage(uncached=2_000, read=0, output=1),
    )
    codec = wire.get("openai_responses")
    writer = codec.writer()
    data = codec.write_reply(reply)
    if stream:
        data = b"".join(map(writer.write, reply_events(reply)))
    kind = "text/event-stream" if stream else "application/json"
    judge = Judge()
    judge.call_ended(
        RelayedCall(
            number=1,
            started=1_790_000_000.0,
            method="POST",
            route=ProxyRoute(prefix="", provider="openai", upstream="https://api.example"),
            path="/v1/responses",
            query="",
            request_headers=(("content-type", "application/json"),),
            request_body=body,
            status=200,
            response_headers=(("content-type", kind),),
            pieces=[ResponsePiece(0.1, data)],
            began=0.1,
            ended=0.2,
        )
    )
    return judge.calls[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_model_that_answered_is_judged(stream: bool) -> None:
    call = judged(BODY, stream=stream)
    assert (call.kind, call.model) == ("judged", "gpt-5.2-2025-12-11"), call.reason
    assert call.cost_usd is not None
    assert call.verdict is not None


def test_request_without_a_model_and_a_prompt_is_not_judged() -> None:
    call = judged(b'{"input":"hi"}', stream=False)
    assert call.kind == "not_judged"
    assert "model" in call.reason
