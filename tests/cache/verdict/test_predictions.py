"""What a call left in the cache, from a simulator's prediction and its bill."""

from __future__ import annotations

from anaphora import catalog
from anaphora.cache.simulator import Outcome, Span
from anaphora.cache.simulator.outcome import predict_read
from anaphora.values import Usage

IMPLICIT = catalog.rules("openai", "gpt-5.2", "openai_chat")
MARKED = catalog.rules("anthropic", "claude-sonnet-4-5", "anthropic")


def test_a_miss_leaves_the_prompt_cached_where_caching_is_implicit() -> None:
    """A read was to be expected and nothing was read: all was computed, and so it was kept."""
    before = Outcome((Span(0, 1536, "read", "found"), Span(1536, 2000, "uncached", "new")))
    now = Outcome((Span(0, 1920, "read", "found"), Span(1920, 2100, "uncached", "new")))
    billed = Usage(uncached=2000, read=0, output=10)
    assert predict_read(before, billed, now, IMPLICIT).left == 1920


def test_a_miss_without_a_write_leaves_nothing_with_markers() -> None:
    before = Outcome((Span(0, 1536, "read", "found"), Span(1536, 2000, "uncached", "new")))
    now = Outcome((Span(0, 1536, "read", "found"), Span(1536, 2100, "uncached", "new")))
    billed = Usage(uncached=2000, read=0, written={}, output=10)
    assert predict_read(before, billed, now, MARKED).left == 0
