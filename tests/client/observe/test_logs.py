"""A log line for each call, also with unusual names."""

from __future__ import annotations

import json
import logging
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import BARE, FULL, LOST

from anaphora.client.observe import Logs
from anaphora.client.observe.export import fields, line
from anaphora.client.response import Record

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"=]+)(?: |$)')


def test_line_of_a_complete_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="anaphora.calls"):
        Logs()(FULL)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("anaphora.calls", "INFO")
    assert record.getMessage() == (
        "operation=chat provider=main system=anthropic wire=anthropic host=api.anthropic.com:443"
        " model=claude-sonnet-4-5 answered_by=claude-sonnet-4-5-20250929 outcome=ok status=200"
        " request_id=req_2 stop_reason=end seconds=4 first=3 queued=0.5 attempts=2 uncached=30 read=700"
        " written=270 output=50 predicted=700 verdict=partial cause=system_changed lost=200"
        " cost_usd=0.0021 saved=0.0019 notices=marker_dropped"
    )


def test_unknown_values_are_left_out() -> None:
    assert line(fields(BARE)) == (
        "operation=chat provider=local system=ollama wire=openai_chat host=localhost model=qwen3:8b"
        " outcome=ok seconds=0.5 queued=0 attempts=0"
    )


@pytest.mark.parametrize(
    "record, level, expected",
    [
        (FULL, logging.DEBUG, "DEBUG"),
        (LOST, logging.DEBUG, "WARNING"),
        (LOST, logging.ERROR, "ERROR"),
    ],
)
def test_failed_call_is_at_least_a_warning(
    caplog: pytest.LogCaptureFixture, record: Record, level: int, expected: str
) -> None:
    logger = logging.getLogger("an app's own")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        Logs(logger, level)(record)
    assert [found.levelname for found in caplog.records] == [expected]


def test_disabled_level_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="anaphora.calls"):
        Logs()(FULL)
    assert caplog.records == []


def test_formatters_get_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="anaphora.calls"):
        Logs()(LOST)
    assert vars(caplog.records[0])["call"] == fields(LOST)
    assert fields(LOST)["outcome"] == "Overloaded"


@given(st.text(min_size=1))
def test_record_is_one_parsable_line(name: str) -> None:
    known = fields(msgspec.structs.replace(FULL, provider=name))
    text = line(known)
    assert len(text.splitlines()) == 1
    assert "".join(match.group() for match in PAIR.finditer(text)) == text
    found = {key: json.loads(v) if v[0] == '"' else v for key, v in PAIR.findall(text)}
    assert set(found) == set(known)
    assert found["provider"] == known["provider"]
