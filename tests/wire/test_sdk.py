"""The vendors' SDKs judge every wire: our requests fit their types, and they read what we write over
real HTTP. What is particular to an SDK is in `support.sdk`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types
from support.byte_server import byte_server
from support.sdk import anthropic, gemini, mistral, openai_chat, openai_responses
from support.sdk.case import SdkCase
from support.tables import each_row

from anaphora.errors import Upstream
from anaphora.values import ReplyFail
from anaphora.wire.replies import reply_events

MODULES = (anthropic, openai_chat, openai_responses, gemini, mistral)
CASES: list[SdkCase] = [module.CASE for module in MODULES]


def rows(field: str) -> list[Any]:
    """One row for each case and each entry of its field."""
    return [
        pytest.param(case, entry, id=f"{case.name}-{id_of(entry, index)}")
        for case in CASES
        for index, entry in enumerate(getattr(case, field))
    ]


def id_of(entry: Any, index: int) -> str:
    if isinstance(entry, Upstream):
        return f"{type(entry).__name__}{entry.status or ''}"
    return entry if isinstance(entry, str) else str(index)


@each_row("case, name", rows("calls"))
def test_request_fits_the_types(case: SdkCase, name: str) -> None:
    assert not case.problems(case.body(name))


@each_row("case, spoil", rows("spoils"))
def test_type_check_detects_a_difference(case: SdkCase, spoil: Any) -> None:
    body = case.body(case.spoiled)
    spoil(body)
    assert case.problems(body)


@pytest.mark.parametrize("case, name", rows("replies"))
def test_sdk_reads_a_reply(case: SdkCase, name: str) -> None:
    reply = case.replies[name]
    with byte_server(case.codec.write_reply(reply), "application/json") as address:
        case.check_reply(case.ask(address), reply)


@pytest.mark.parametrize("case, name", rows("replies"))
def test_sdk_reads_a_stream(case: SdkCase, name: str) -> None:
    reply = case.replies[name]
    with byte_server(case.stream(reply), case.content_type) as address:
        case.check_stream(case.ask_for_stream(address), reply)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.stream_error], ids=lambda case: case.name
)
def test_sdk_raises_on_a_failed_stream(case: SdkCase) -> None:
    writer = case.codec.writer()
    reply = next(iter(case.replies.values()))
    events = [
        *reply_events(reply)[:4],
        ReplyFail("Overloaded", "try later", code=case.overload_code),
    ]
    body = b"".join(writer.write(event) for event in events)
    assert case.stream_error is not None
    with (
        byte_server(body, case.content_type) as address,
        pytest.raises(case.stream_error, match="try later") as caught,
    ):
        case.ask_for_stream(address)
    if case.name == "gemini":
        assert vars(caught.value)["status"] == case.overload_code


@each_row("case, error", rows("errors"))
@each_row("stream", [False, True], ids=["single", "stream"])
def test_sdk_raises_a_written_error(case: SdkCase, error: Upstream, stream: bool) -> None:
    status, headers, body = case.codec.write_error(error)
    content_type = headers.pop("content-type")
    ask: Any = case.ask_for_stream if stream else case.ask
    with (
        byte_server(body, content_type, status, headers) as address,
        pytest.raises(Exception) as caught,  # noqa: PT011 - checked below, as the SDK's own class
    ):
        ask(address)
    case.check_error(caught.value, error, status)
    again = case.codec.read_error(status, headers, body)
    assert type(again) is type(error)
    assert str(again) == str(error)
    for name in case.error_fields:
        assert getattr(again, name) == getattr(error, name)


# ── What only one SDK does ───────────────────────────────────────────────────────────────────────


def test_anthropic_types_lack_the_dropped_fields() -> None:
    """When the SDK takes them back, the list goes."""
    body = anthropic.CASE.body("smallest")
    for name in anthropic.DROPPED_FROM_THE_TYPES:
        assert not anthropic.schema().is_valid(body | {name: 1})


@each_row("name", gemini.CALLS)
def test_google_sdk_loads_every_content(name: str) -> None:
    for content in gemini.CASE.body(name)["contents"]:
        loaded = types.Content.model_validate_json(json.dumps(content))
        assert len(loaded.parts or ()) == len(content["parts"])
