"""OpenAI's breakpoints in Responses: their bytes, and where they may stand."""

from __future__ import annotations

from anaphora.values import Ttl
from anaphora.wire.markers import MarkerPlaces
from anaphora.wire.openai import CACHE_KEY, ONLY_MARKS

MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}

#: The breakpoint that OpenAI sets by itself takes no bytes; its TTL is among the cache options.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b"", "12h": b""}

PLACES = MarkerPlaces(
    field="prompt_cache_breakpoint",
    contents=("content", "output"),
    joined="output",
    text=b'{"type":"input_text","text":',
    message=b'{"type":"message","role":"user","content":[',
    key=CACHE_KEY,
    only_marks=ONLY_MARKS,
)
