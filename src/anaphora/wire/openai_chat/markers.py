"""OpenAI's breakpoints in Chat Completions: their bytes, and where they may stand."""

from __future__ import annotations

from anaphora.values import Ttl
from anaphora.wire.markers import MarkerPlaces
from anaphora.wire.openai import CACHE_KEY, ONLY_MARKS

#: The bytes that mark a part. Without a TTL it has the request's, which is always 30 minutes.
MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}

#: The breakpoint that OpenAI sets by itself takes a slot, but no bytes in the request.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b""}

#: Types of content parts that may carry a breakpoint.
MARKABLE = frozenset({"text", "image_url", "input_audio", "file"})

PLACES = MarkerPlaces(
    field="prompt_cache_breakpoint",
    text=b'{"type":"text","text":',
    key=CACHE_KEY,
    only_marks=ONLY_MARKS,
)
