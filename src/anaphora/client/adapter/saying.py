"""From a request to a call, and from an answer to a response: what one has no word for in the
other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anaphora.client.structured import Structured, output_of
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptIR
from anaphora.values import Message, Notice, Refusal, Reply, StopReason, Text, Usage

from . import hashing
from .values import LlmMessage, LlmRequest, TokenUsage

#: Why an answer ended, in the words of `StreamChunk.finish_reason`.
_FINISH: dict[StopReason, str] = {"end": "stop", "stop_sequence": "stop", "length": "max_tokens"}


#: Where a call's parameters stand in a request.
_PLACES = {
    "params.max_tokens": "max_tokens",
    "params.output.schema": "json_schema",
    "params.temperature": "temperature",
}


@contextmanager
def own_places() -> Iterator[None]:
    """What a wire refuses to say is named by the request's field: the one that the caller knows."""
    try:
        yield
    except InvalidRequest as problem:
        if problem.path not in _PLACES:
            raise
        raise type(problem)(problem.reason, path=_PLACES[problem.path]) from None


def call_of(request: LlmRequest) -> tuple[Call, Structured[Any] | None, tuple[Notice, ...]]:
    """The call, the form that its answer must have, and what is said otherwise than asked."""
    request.canonical()  # names what cannot be said at all
    hashing.whole(request.timeout_ms, 64, "timeout_ms")
    if not request.model.strip():
        raise InvalidRequest("must name a model", path="model")
    if not request.messages:
        raise InvalidRequest("must have at least one message", path="messages")
    if not request.max_tokens:
        raise InvalidRequest("must be at least 1", path="max_tokens")
    form = _form(request.json_schema)
    params = Params(
        max_tokens=request.max_tokens,
        # What is hashed is what is sent.
        temperature=float(hashing.temperature(request.temperature)),
    )
    prompt = PromptIR.chat(map(_message, request.messages), system=request.system)
    call = Call(ir=prompt, model=request.model, params=params)
    return call if form is None else form.ask(call), form, _notices(request.messages)


def text_of(reply: Reply) -> str:
    """All that the model said, its words for declining included."""
    said = (part.text for part in reply.message.parts if isinstance(part, Text | Refusal))
    return "".join(said)


def finish_reason(reply: Reply) -> str:
    if reply.stop == "other":
        return reply.stop_raw or "other"
    return _FINISH.get(reply.stop, reply.stop)


def token_usage(usage: Usage) -> TokenUsage | None:
    """None unless both counts are known: an unknown one is not 0."""
    if usage.input is None or usage.output is None:
        return None
    return TokenUsage(usage.input, usage.output)


def _form(schema: Any) -> Structured[Any] | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise InvalidRequest("a schema is a JSON object", path="json_schema")
    try:
        return output_of(schema)
    except InvalidRequest as problem:
        raise InvalidRequest(problem.reason, path="json_schema") from None


def _message(message: LlmMessage) -> Message:
    """A tool's message names no call that it answers, and no provider takes a result without one.
    It is what somebody other than the model says, so it is said as the user's."""
    if message.role == "assistant":
        return Message.assistant(message.content)
    return Message.user(message.content)


def _notices(messages: tuple[LlmMessage, ...]) -> tuple[Notice, ...]:
    why = "names no call that it answers; said as the user's text"
    return tuple(
        Notice("tool_as_user", why, f"messages[{at}]")
        for at, message in enumerate(messages)
        if message.role == "tool"
    )
