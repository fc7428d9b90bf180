"""Bills in session files of Codex: `<folder>/sessions/**/rollout-*.jsonl`.

A `token_count` follows each reply, sometimes twice, and in newer versions a `token_usage_record`
with the response's id comes before it. A bill without an id is identified by the items of its reply
(see `analysis.trace.programs.codex`). A fork repeats the lines of another session with new times.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import Answer
from anaphora.analysis.trace.programs.codex import (
    ItemId,
    answer_with,
    is_from_model,
    item_id,
    usage_from,
)
from anaphora.usage.records import CallBill, moment

from .lines import BillReader, decoder, fields, tier_of

#: The beginning of a line without a bill, as Codex writes it: its types come first.
_NO_BILL = re.compile(
    rb'\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"(?:event_msg","payload":\{"type":"(?!token_count"|thread_settings_applied")'
    rb'|response_item","payload":\{"type":"(?:function|custom_tool)_call_output")'
).match


_decode = decoder(
    fields(
        "type timestamp",
        payload=fields(
            "type role call_id encrypted_content info usage response_id id forked_from_id"
            " model_provider model cwd source thread_source",
            thread_settings=fields("service_tier"),
        ),
    )
)


class CodexState(msgspec.Struct, array_like=True):
    """What is known between two lines."""

    id: str = ""
    provider: str = "openai"
    model: str = ""
    project: str = ""
    tier: str = ""
    subagent: bool = False
    copied: bool = False
    totals: Any = None
    records: bool = False
    """The bills are `token_usage_record`s."""
    items: list[ItemId] = []
    """Of the reply that is not billed yet."""


class CodexBills(BillReader):
    def __init__(self) -> None:
        super().__init__(CodexState())

    def read(self, line: bytes, number: int) -> tuple[CallBill, ...]:
        if _NO_BILL(line) is not None:
            return ()
        one, known = _decode(line), self.known
        payload, kind = one.payload, one.type
        if payload is None:
            return ()
        if kind == "response_item":
            if is_from_model(payload.type, payload.role):
                item = item_id(payload.type, payload.call_id, payload.encrypted_content)
                known.items.append(item)
        elif kind == "event_msg" and payload.type == "token_count":
            return self._count(payload.info, moment(one.timestamp), number)
        elif payload.thread_settings is not None:
            known.tier = tier_of(payload.thread_settings.service_tier)
        elif kind == "token_usage_record":
            known.records = True
            return self._record(payload, moment(one.timestamp), number)
        elif kind == "turn_context":
            known.model = str(payload.model or known.model)
            known.project = str(payload.cwd or known.project)
        elif kind == "compacted":
            known.items = []
        elif kind == "session_meta":
            self._meta(payload)
        return ()

    def _meta(self, payload: Any) -> None:
        known, id = self.known, str(payload.id or "")
        known.copied |= bool(payload.forked_from_id) or known.id not in ("", id)
        known.id = known.id or id
        known.provider = str(payload.model_provider or known.provider)
        known.model = str(payload.model or known.model)
        known.project = str(payload.cwd or known.project)
        known.subagent |= isinstance(payload.source, dict) or payload.thread_source == "subagent"

    def _count(self, info: Any, at: float | None, number: int) -> tuple[CallBill, ...]:
        known = self.known
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(last, dict):
            return ()
        totals = info.get("total_token_usage")
        if known.records or (totals is not None and totals == known.totals):
            return ()  # repeated
        known.totals = totals
        usage = usage_from(last)
        if usage is None:
            return ()
        answer = answer_with(usage, totals, at, known.items, copied=known.copied)
        return self._call(answer, at, usage, number)

    def _record(self, payload: Any, at: float | None, number: int) -> tuple[CallBill, ...]:
        usage = usage_from(payload.usage) if isinstance(payload.usage, dict) else None
        if usage is None:
            return ()
        answer = answer_of(payload.response_id, at, usage, self.known.items)
        return self._call(answer, at, usage, number)

    def _call(
        self, answer: Answer, at: float | None, usage: TraceUsage, number: int
    ) -> tuple[CallBill, ...]:
        known = self.known
        known.items, by = [], (known.provider, known.model)
        tier, subagent = known.tier, known.subagent
        return (self.call(answer, usage, by, at, number, tier=tier, subagent=subagent),)
