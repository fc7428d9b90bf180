"""Records as a client would hand them out, with everything in them that can be."""

from __future__ import annotations

from decimal import Decimal

from anaphora.cache.verdict import Cause, Change, Diagnosis, Verdict
from anaphora.client.response import Attempt, BlockShare, Record
from anaphora.values import Notice, Usage

AT = 1_800_000_000.0

FAILED = Attempt(
    provider="main",
    model="claude-sonnet-4-5",
    at=AT + 0.5,
    seconds=0.25,
    queued=0.5,
    status=529,
    request_id="req_1",
    error="Overloaded",
    reason="Overloaded, while reading: what shall I tell my doctor?",
    wait=1.25,
)
ANSWERED = Attempt(
    provider="main",
    model="claude-sonnet-4-5",
    at=AT + 2.0,
    seconds=2.0,
    status=200,
    request_id="req_2",
)
VERDICT = Verdict(
    result="partial",
    causes=(Cause(kind="system_changed", text="the text was edited"),),
    change=Change(
        kind="text_edited",
        offset=400,
        chunk=2,
        section="system",
        label="memory",
        path="system[1].text",
        before="he is ill",
        after="she is well",
        detail="memory",
    ),
    left=900,
    predicted=700,
    billed=700,
    lost=200,
    cost_usd=Decimal("0.0006"),
    diagnosis=Diagnosis(provider="anthropic", code="system_changed", tokens=200),
    agrees=True,
)
FULL = Record(
    provider="main",
    system="anthropic",
    wire="anthropic",
    host="api.anthropic.com:443",
    model="claude-sonnet-4-5",
    answered_by="claude-sonnet-4-5-20250929",
    response_id="msg_1",
    request_id="req_2",
    streamed=True,
    at=AT,
    first=3.0,
    seconds=4.0,
    attempts=(FAILED, ANSWERED),
    max_tokens=1024,
    temperature=0.5,
    stop_reason="end",
    usage=Usage(
        uncached=30,
        read=700,
        written={"5m": 200, "1h": 70},
        output=50,
        reasoning=20,
        raw='{"input_tokens":30}',
    ),
    predicted=700,
    verdict=VERDICT,
    cost_usd=Decimal("0.0021"),
    saved=Decimal("0.0019"),
    blocks=(
        BlockShare(label="tool search", section="tools", tokens=100),
        BlockShare(label="guide", section="system", tokens=500),
        BlockShare(label="memory", section="system", tokens=200),
        BlockShare(label="conversation m1", section="messages", tokens=150),
        BlockShare(label="conversation m2", section="messages", tokens=50),
    ),
    notices=(Notice("marker_dropped", "one marker too many", "system[1]"),),
)

#: As little as can be known.
BARE = Record(
    provider="local",
    system="ollama",
    wire="openai_chat",
    host="localhost",
    model="qwen3:8b",
    at=AT,
    seconds=0.5,
)

LOST = Record(
    provider="main",
    system="anthropic",
    wire="anthropic",
    host="api.anthropic.com",
    model="claude-sonnet-4-5",
    at=AT,
    seconds=1.0,
    attempts=(FAILED,),
    error="Overloaded",
)
