"""Limits that hold for every model, from dated rows."""

from __future__ import annotations

from support.tables import each_row

from anaphora import wire as wires
from anaphora.catalog.api_limits import batch_limits, output_limits


@each_row("wire", wires.WIRES)
def test_responses_alone_has_a_least_answer(wire: str) -> None:
    assert output_limits(wire).least_tokens == (16 if wire == "openai_responses" else 1)


@each_row("wire", wires.WIRES)
def test_every_provider_with_batches_has_their_limits(wire: str) -> None:
    limits = batch_limits(wires.PROVIDERS[wire])
    assert (limits is not None) == (wires.features(wire).batches is not None)


def test_batch_limits() -> None:
    anthropic, openai = batch_limits("anthropic"), batch_limits("openai")
    assert anthropic is not None
    assert openai is not None
    assert (anthropic.most_requests, anthropic.most_bytes) == (100_000, 256_000_000)
    assert (openai.most_requests, openai.most_bytes) == (50_000, 200_000_000)
    assert all("not verified" not in row.source for row in (anthropic, openai))
