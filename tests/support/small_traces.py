"""Small traces with known usage."""

from __future__ import annotations

from typing import Any

from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage

Json = dict[str, Any]


def bill(read: int = 0, written: int = 0, input: int = 0, output: int = 10) -> TraceUsage:
    return TraceUsage(input=input, cache_read=read, cache_write_5m=written, output=output)


def user(text: str) -> TraceMessage:
    return TraceMessage(role="user", content=text)


def assistant(text: str) -> TraceMessage:
    return TraceMessage(role="assistant", content=text)


def calls_tool(name: str) -> TraceMessage:
    return TraceMessage(role="assistant", content="", tool_calls=[{"id": name, "name": name}])


def tool(name: str, text: str = "done") -> TraceMessage:
    return TraceMessage(role="tool", content=text, tool_call_id=name)


def trace_of(
    *calls: TraceCall,
    messages: list[TraceMessage] | None = None,
    id: str = "conversation",
    provider: str = "anthropic",
    model: str = "claude-sonnet-4-5",
    **more: Any,
) -> Trace:
    """A conversation; question and answer in turns, as many as its calls need."""
    most = max((call.messages for call in calls), default=0)
    prompt = [user(f"q{at}") if at % 2 == 0 else assistant(f"a{at}") for at in range(most)]
    return Trace(
        id=id,
        provider=provider,
        model=model,
        calls=calls,
        messages=tuple(prompt if messages is None else messages),
        system_tokens_unknown=more.pop("system_tokens_unknown", True),
        **more,
    )


def at(t: float, messages: int, usage: TraceUsage | None, **more: Any) -> TraceCall:
    return TraceCall(t=t, messages=messages, usage=usage, **more)
