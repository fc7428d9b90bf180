"""What a row of an audit log says about its call."""

from __future__ import annotations

from typing import Any

from support.tables import each_row

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.sentences import sentence_of
from anaphora.dashboard.tables import result_tag


@each_row(
    "fields, tag, sentence",
    [
        ({"verdict": None}, "Answered", ""),
        ({"verdict": "first"}, "First call", "First call: nothing cached yet."),
        ({"verdict": "hit"}, "Hit", "Read what was cached."),
        (
            {"verdict": "miss", "cause": "no_marker"},
            "Not cached",
            "Not cached: no cache marker.",
        ),
        ({"verdict": "miss"}, "Not cached", "Not cached."),
        (
            {"verdict": "miss", "cause": "expired", "lost": 1},
            "Miss",
            "Read nothing of what was cached: cache entry expired; 1 token billed again.",
        ),
        (
            {"verdict": "partial", "broke": True, "change": "clock", "changed": "rules", "lost": 9},
            "Break",
            "Read a part of what was cached: a clock time changed in rules; 9 tokens billed again.",
        ),
        (
            {"verdict": "miss", "broke": True, "changed": "rules"},
            "Break",
            "Read nothing of what was cached: the block changed in rules.",
        ),
        (
            {"outcome": "RateLimited", "status": 429, "attempts": 3},
            "RateLimited (429)",
            "RateLimited (status 429) after 3 attempts.",
        ),
    ],
)
def test_result_in_a_tag_and_in_a_sentence(fields: dict[str, Any], tag: str, sentence: str) -> None:
    call = AuditEnvelope(at=0.0, model="m", **fields)
    assert sentence_of(call) == sentence
    assert tag in str(result_tag(call)).replace("<bdi>", "").replace("</bdi>", "")
