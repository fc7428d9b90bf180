"""A request as a call, without anything being sent."""

from __future__ import annotations

from anaphora.client.adapter import LlmMessage, LlmRequest, call_of, finish_reason, token_usage
from anaphora.values import Message, Reply, Usage


def test_tool_message_becomes_a_user_message_with_a_notice() -> None:
    messages = (LlmMessage("user", "a"), LlmMessage("tool", "b"))
    call, form, notices = call_of(LlmRequest(model="m", messages=messages))
    assert [(message.role, message.text) for message in call.ir.body_chat()] == [
        ("user", "a"),
        ("user", "b"),
    ]
    assert form is None
    assert [(notice.code, notice.path) for notice in notices] == [("tool_as_user", "messages[1]")]


def test_finish_reasons_of_chunks() -> None:
    def ended(stop: str, raw: str | None = None) -> str:
        reply = Reply(
            id="r",
            model="m",
            message=Message.assistant(""),
            stop_reason=stop,  # type: ignore[arg-type]
            stop_reason_raw=raw,
        )
        return finish_reason(reply)

    assert [
        ended(stop) for stop in ("end", "stop_sequence", "length", "tool_calls", "refusal")
    ] == ["stop", "stop", "max_tokens", "tool_calls", "refusal"]
    assert (ended("other", "recitation"), ended("other")) == ("recitation", "other")


def test_unknown_token_counts_are_none() -> None:
    assert token_usage(Usage(output=1)) is None
    assert token_usage(Usage(uncached=1)) is None
    found = token_usage(Usage(uncached=1, read=2, written={"5m": 3}, output=4))
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (6, 4)
