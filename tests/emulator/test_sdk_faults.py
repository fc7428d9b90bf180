"""Each fault on each wire: what the official SDK does with it.

`error` is the class that the client raises, `ok` that it does not notice. A row has the outcome of
a whole response and of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from support.waiting import PATIENCE, wait_until

from anaphora import emulator
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.fault_effects import KINDS
from anaphora.emulator.faults import HEADER, Faults
from anaphora.emulator.server import Emulator

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
MISSING = "the end is missing"
#: How long a client waits for the next byte.
IMPATIENCE = 0.3

#: A client, the fault to ask for, and whether to stream.
AskFunction = Callable[[Any, str, bool], Any]


def ask_anthropic(client: anthropic.Anthropic, fault: str, stream: bool) -> Any:
    ask: Any = {
        "model": "claude-opus-5-5",
        "max_tokens": 100,
        "messages": MESSAGES,
        "extra_headers": {HEADER: fault},
    }
    if not stream:
        return client.messages.create(**ask).content[0].text
    with client.messages.stream(**ask) as events:
        return events.get_final_text()


def ask_chat(client: openai.OpenAI, fault: str, stream: bool) -> Any:
    ask: Any = {"model": "gpt-4o", "messages": MESSAGES, "extra_headers": {HEADER: fault}}
    if not stream:
        return client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(**ask, stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop", MISSING
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def ask_responses(client: openai.OpenAI, fault: str, stream: bool) -> Any:
    ask: Any = {"model": "gpt-4o", "input": "Hello", "extra_headers": {HEADER: fault}}
    if not stream:
        return client.responses.create(**ask).output_text
    with client.responses.stream(**ask) as events:
        return events.get_final_response().output_text


def ask_gemini(client: genai.Client, fault: str, stream: bool) -> Any:
    options = types.HttpOptions(headers={HEADER: fault})
    ask: Any = {
        "model": "gemini-2.5-flash",
        "contents": "Hello",
        "config": types.GenerateContentConfig(http_options=options),
    }
    if not stream:
        return client.models.generate_content(**ask).text
    chunks = list(client.models.generate_content_stream(**ask))
    candidates = chunks[-1].candidates
    assert candidates, MISSING
    assert candidates[0].finish_reason == types.FinishReason.STOP, MISSING
    return "".join(chunk.text or "" for chunk in chunks)


ASK: dict[str, AskFunction] = {
    "anthropic": ask_anthropic,
    "openai_chat": ask_chat,
    "openai_responses": ask_responses,
    "gemini": ask_gemini,
}


@contextmanager
def made(url: str, seconds: float) -> Iterator[dict[str, Any]]:
    """A client for each wire that waits so long."""
    options = types.HttpOptions(base_url=url, timeout=int(seconds * 1000))
    with (
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, timeout=seconds) as claude,
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=seconds) as gpt,
        genai.Client(api_key="k", http_options=options) as gemini,
    ):
        yield {"anthropic": claude, "openai_chat": gpt, "openai_responses": gpt, "gemini": gemini}


@pytest.fixture(scope="module")
def clients(running_emulator: Emulator) -> Iterator[dict[bool, dict[str, Any]]]:
    """Clients with long timeouts, and with short ones for the faults that never end."""
    with (
        made(running_emulator.url, PATIENCE) as patient,
        made(running_emulator.url, IMPATIENCE) as impatient,
    ):
        yield {False: patient, True: impatient}


OK = "ok"
WIRES = tuple(ASK)

#: Fault, then for each wire in order: an answer in one piece, a stream.
_LIMITED = (("RateLimitError",) * 2,) * 3 + (("ClientError",) * 2, ("ResponseError",) * 2)
_LATE = (("APITimeoutError",) * 2,) * 3 + (("ReadTimeout",) * 2,) * 2
_TORN = (
    ("APIConnectionError", "RemoteProtocolError"),
    ("APIConnectionError", "APIConnectionError"),
    ("APIConnectionError", "APIConnectionError"),
    ("RemoteProtocolError", "RemoteProtocolError"),
    ("RemoteProtocolError", "RemoteProtocolError"),
)


def _failed(own: str) -> tuple[tuple[str, str], ...]:
    """Anthropic's client tells server errors apart, the others do not."""
    rest = ("InternalServerError", "InternalServerError", "ServerError", "ResponseError")
    return tuple((name, name) for name in (own, *rest))


SEEN: dict[str, tuple[tuple[str, str], ...]] = {
    "rate-limit": _LIMITED,
    "rate-limit-bare": _LIMITED,
    "spend-cap": (("EnforcedSpendLimitReachedError",) * 2, *_LIMITED[1:]),
    "500": _failed("InternalServerError"),
    "529": _failed("OverloadedError"),
    # Clients trust the status 200 and fail at the missing fields.
    "ok-error": (
        ("TypeError", "AssertionError"),
        ("TypeError", "IndexError"),
        ("TypeError", "RuntimeError"),
        (OK, "ServerError"),
        ("ValidationError", "ResponseError"),
    ),
    "timeout": _LATE,
    "slow-first-byte; seconds=3": _LATE,
    "reset": _TORN,
    "cut": _TORN,
    "stream-error": (
        ("InternalServerError", "APIStatusError"),
        ("InternalServerError", "APIError"),
        ("InternalServerError", "RuntimeError"),
        ("ServerError", "ServerError"),
        ("ResponseError", "ResponseError"),
    ),
    "context-overflow": (
        *(("BadRequestError", "BadRequestError"),) * 3,
        ("ClientError", "ClientError"),
        ("ResponseError", "ResponseError"),
    ),
    "broken-json": (
        ("JSONDecodeError", "JSONDecodeError"),
        ("JSONDecodeError", "JSONDecodeError"),
        ("JSONDecodeError", "JSONDecodeError"),
        ("JSONDecodeError", "UnknownApiResponseError"),
        ("JSONDecodeError", "JSONDecodeError"),
    ),
}


def test_every_fault_is_covered() -> None:
    assert {fault.partition(";")[0] for fault in SEEN} == set(KINDS)


def outcome(ask: AskFunction, client: Any, fault: str, stream: bool) -> str:
    try:
        ask(client, fault, stream)
    except Exception as problem:
        return MISSING if MISSING in str(problem) else type(problem).__name__
    return OK


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", SEEN)
@pytest.mark.long
def test_sdk_outcome(
    emu: Emulator, clients: dict[bool, dict[str, Any]], fault: str, wire: str, stream: bool
) -> None:
    seen = SEEN[fault][WIRES.index(wire)][stream]
    client = clients[SEEN[fault] is _LATE][wire]

    def requests() -> list[dict[str, Any]]:
        assert outcome(ASK[wire], client, fault, stream) == seen
        return emu.requests()

    # On a busy machine an impatient client may leave before its request is read; it asks again.
    entry = wait_until(requests, "a request is read")[0]
    assert entry["fault"] == fault.partition(";")[0]


@pytest.mark.parametrize("fault", ["rate-limit", "529", "reset"])
@pytest.mark.long
def test_retry_succeeds(emu: Emulator, fault: str) -> None:
    """The header would fail every try; a rule fails the first."""
    rule = f"faults: [{{fault: '{fault}', nth: 1}}]"
    with emulator.running(EmulatorOptions(faults=Faults.decode(rule, "rule.yaml"))) as other:
        with openai.OpenAI(base_url=f"{other.url}/v1", api_key="k", max_retries=1) as client:
            answer = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        assert answer.choices[0].message.content
        assert [entry["fault"] for entry in other.requests()] == ["", fault]


def test_rate_limited_request_caches_nothing(emu: Emulator) -> None:
    long: Any = {
        "model": "claude-opus-5-5",
        "max_tokens": 100,
        "system": [
            {"type": "text", "text": "Same. " * 3000, "cache_control": {"type": "ephemeral"}}
        ],
        "messages": MESSAGES,
    }
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.RateLimitError):
            client.messages.create(**long, extra_headers={HEADER: "rate-limit"})
        assert not client.messages.create(**long).usage.cache_read_input_tokens


def test_unknown_fault_is_rejected(emu: Emulator, clients: dict[bool, dict[str, Any]]) -> None:
    with pytest.raises(anthropic.BadRequestError, match=HEADER):
        ask_anthropic(clients[False]["anthropic"], "flood", False)
