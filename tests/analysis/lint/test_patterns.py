"""Volatile patterns in texts, and ordinary prose that must not match."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row
from support.traces import FOLDER, missing

from anaphora import wire
from anaphora.analysis.lint.checks import stable_chunks, strings
from anaphora.analysis.lint.patterns import hits
from anaphora.errors import AnaphoraError
from anaphora.wire.cutting import cut

EXCHANGES = FOLDER.parent / "exchanges" / "exchanges.jsonl.gz"

VOLATILE = {
    "volatile-date": [
        "Today is 2026-11-15.",
        "Today's date: November 15, 2026",
        "Today's date is Sunday, November 15th, 2026.",
        "The current date is 15 November 2026.",
        "<current_date>2026-11-15</current_date>",
        "Current date: 11/15/2026",
        "**Current date:** 2026-11-15",
    ],
    "volatile-clock": [
        "The current time is 15:00:00 EST.",
        "It is 09:41.",
        "It's 9:41 pm in Rome.",
        "The current time is 2024-05-15 15:00:00 EST.",
        "Current timestamp: 1763200000",
        "Now: 2026-11-15T09:41:07Z",
        "Session started at 09:41:07.",
    ],
    "volatile-uuid": [
        "Session: 6f1c0f0e-8d0b-4f5c-9a53-3a0f2b9d7c11",
        "Your request id is 6f1c0f0e-8d0b-4f5c-9a53-3a0f2b9d7c11.",
        "trace_id=6f1c0f0e-8d0b-4f5c-9a53-3a0f2b9d7c11",
    ],
    "volatile-nonce": [
        "request 3f9a21c4. You are helpful.",
        "nonce: 77b0e918",
        "Session id: 9f86d081884c7d65",
        "You are in thread_01HV8XK2M9Q.",
    ],
    "volatile-counter": [
        "This is request #1234.",
        "You are on turn 17.",
        "Message count: 42",
        "You have 12,345 tokens remaining.",
        "uptime: 8231",
    ],
    "volatile-path": [
        "Work in /tmp/tmpab12cd34/work.",
        "Your scratch folder is /var/folders/49/l4171l3n219_xwq30fmyzr8w0000gn/T/x",
        r"Write to C:\Users\me\AppData\Local\Temp\run4812\out.txt",
        "Logs: /proc/4711",
    ],
    "volatile-host": [
        "You run on ip-10-0-3-17.ec2.internal.",
        "Hostname: build-agent-42",
        "The pod is api-5d4f8c7b9d-x2x7k",
        "Machine: Annas-MacBook-Pro.local",
    ],
}

STABLE = [
    "Your knowledge cutoff is 2024-06-01.",
    "The API was released on November 6, 2023, and changed on 2024-05-13.",
    "Dates have the format YYYY-MM-DD, for example 2024-01-31.",
    'Answer like {"date": "2024-01-15", "time": "14:30"}.',
    "Use ISO 8601, e.g. 2024-01-15T14:30:00Z.",
    "Office hours are from 09:00 to 17:30.",
    "Flight HAT136 departs at 19:00:00 and costs $1,234.56.",
    "Step 1: read the file. Step 2: write it. Message 3 is the last.",
    "An id looks like 123e4567-e89b-12d3-a456-426614174000.",
    "The nil UUID is 00000000-0000-0000-0000-000000000000.",
    "Write temporary files to /tmp and clean up.",
    "Copy it to /tmp/output.txt or /tmp/foo/bar.",
    "Settings live in .claude/settings.local.json; see http://localhost:8080.",
    "Colours are #ff8800 and #a1b2c3; masks are 0xdeadbeef.",
    "Use gpt-4o-2024-08-06 or claude-sonnet-4-5-20250929.",
    "At most 5 attempts; retries: 3; max turns = 10.",
    "The ratio is 16:9, the verse John 3:16, the score 2:1.",
    "Commit messages are short. The feed beef faded cafe.",
    "Copyright 2026 Example Corp. Version 1.2.3 (2025).",
    "Ask for the date and time of the meeting; it is important.",
    "Now, 5 is a number, and today we talk about 12 monkeys.",
]


@each_row("rule, text", [(rule, one) for rule in VOLATILE for one in VOLATILE[rule]])
def test_content_about_now_or_this_run_is_found(rule: str, text: str) -> None:
    result = [hit for hit in hits(text) if hit.severity == "warning"]
    assert [hit.rule for hit in result] == [rule]
    assert text[result[0].start : result[0].end].strip()


@each_row("text", STABLE)
def test_ordinary_prose_has_no_findings(text: str) -> None:
    assert [hit for hit in hits(text) if hit.severity != "note"] == []


@each_row(
    "template",
    [
        "The date is {{ current_date }}.",
        "Now: {{now()}}",
        "It is {time}.",
        "Request ${request_id}",
        "Id {uuid4()}",
        "<%= Time.now %>",
        "Today: $(date +%F)",
        "At {{ user.timestamp | iso }}",
    ],
)
def test_placeholders_count_in_templates_only(template: str) -> None:
    assert [hit.rule for hit in hits(template, template=True)] == ["volatile-placeholder"]
    assert list(hits(template)) == []


@pytest.mark.parametrize(
    "template", ["Hello {{ name }}.", "{question}", "{date_format}", "${HOME}"]
)
def test_other_placeholders_are_ignored(template: str) -> None:
    assert list(hits(template, template=True)) == []


@given(st.text(), st.booleans())
def test_hits_are_ordered_and_disjoint(text: str, template: bool) -> None:
    end = 0
    for hit in hits(text, template=template):
        assert end <= hit.start < hit.end <= len(text)
        end = hit.end


# ── Recorded prompts ─────────────────────────────────────────────────────────────────────────────


def recorded_texts() -> Iterator[str]:
    """Every text in the tools and system prompts of the recordings."""
    with gzip.open(EXCHANGES, "rt", encoding="utf-8") as lines:
        for one in map(json.loads, lines):
            if one["wire"] not in wire.WIRES:
                continue
            try:
                rendered = cut(wire.get(one["wire"]), one["request"].encode(), one["path"])
            except AnaphoraError:
                continue
            for chunk in stable_chunks(rendered):
                yield from (text for _, text in strings(chunk))
    for file in sorted(FOLDER.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for trace in map(json.loads, lines):
                yield from _texts(trace.get("tools") or [])
                for message in trace["messages"]:
                    if message["role"] == "system":
                        yield from _texts(message["content"])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.skipif(not EXCHANGES.exists(), reason=f"no recorded exchanges at {EXCHANGES}")
def test_no_false_alarm_on_recorded_system_prompts() -> None:
    """One finding in hundreds of texts, in one that contains the current time."""
    texts = set(recorded_texts())
    alarms = [
        text[max(0, hit.start - 20) : hit.end]
        for text in texts
        for hit in hits(text)
        if hit.severity != "note"
    ]
    assert len(texts) > 400
    assert alarms == ["The current time is 2024-05-15 15:00:00"]
