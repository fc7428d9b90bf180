"""The figures of the demo, held against renderings of the same calls made here."""

from __future__ import annotations

import json

import msgspec
import pytest

from anaphora import cache, catalog
from anaphora.cli._demo.calls import MODEL, calls
from anaphora.cli._demo.report import Report
from anaphora.cli._demo.turns import play
from anaphora.rendered import Rendered
from anaphora.wire import anthropic

pytestmark = pytest.mark.breaks_prefix(reason="a clock in the system prompt is what it shows")

RULES = catalog.rules("anthropic", MODEL)


@pytest.fixture
def report() -> Report:
    """As a program reads it from --json."""
    return msgspec.json.decode(msgspec.json.encode(play()), type=Report)


@pytest.fixture
def cold() -> list[Rendered]:
    """Every turn rendered by itself, nothing shared."""
    profile = catalog.profile("anthropic", MODEL)
    return [anthropic.render(call, profile) for _, call in calls()]


@pytest.fixture
def bodies(cold: list[Rendered]) -> list[bytes]:
    return [anthropic.assemble(r, cache.plan(r, RULES)).body.join() for r in cold]


def shared(mine: bytes, theirs: bytes) -> int:
    pairs = enumerate(zip(mine, theirs, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(mine), len(theirs)))


def test_twelve_turns_of_which_one_breaks(report: Report) -> None:
    assert [turn.turn for turn in report.turns] == list(range(1, 13))
    assert [turn.turn for turn in report.turns if turn.broken] == [9]
    assert [turn.extends for turn in report.turns] == [None, 1, 2, 3, 4, 5, 6, 7, None, 8, 10, 11]


def test_the_break_is_where_the_renderings_differ(report: Report, cold: list[Rendered]) -> None:
    broken = report.turns[8].broken
    assert broken is not None
    before, after = cold[7].cacheable_data(), cold[8].cacheable_data()
    assert broken.since_turn == 8
    assert broken.offset == shared(before, after)
    assert (broken.label, broken.path) == ("identity", "system[0]")
    assert "Current time" in broken.after
    assert "Current time" not in broken.before
    for excerpt, data in ((broken.before, before), (broken.after, after)):
        at = data.index(excerpt.encode())
        assert at <= broken.offset < at + len(excerpt)
    assert broken.rewritten_bytes == len(before) - report.turns[8].reused_bytes
    assert broken.rewritten_tokens == pytest.approx(broken.rewritten_bytes / 3.2, rel=0.5)


def test_a_turn_extends_what_it_says(report: Report, cold: list[Rendered]) -> None:
    for turn, rendered in zip(report.turns, cold, strict=True):
        begins_with = [
            earlier
            for earlier, other in enumerate(cold[: turn.turn - 1], 1)
            if rendered.cacheable_data().startswith(other.cacheable_data())
        ]
        assert turn.extends == (begins_with[-1] if begins_with else None)


def test_the_bytes_of_a_turn_are_its_body(report: Report, bodies: list[bytes]) -> None:
    for turn, body in zip(report.turns, bodies, strict=True):
        parts = (turn.reused_bytes, turn.added_bytes, turn.volatile_bytes, turn.envelope_bytes)
        assert sum(parts) == turn.body_bytes == len(body)
        assert turn.added_bytes > 0
        assert turn.volatile_bytes > 0
    assert report.body_bytes == sum(map(len, bodies))


def test_what_is_reused_ends_at_a_marker_of_the_turn_before(
    report: Report, cold: list[Rendered]
) -> None:
    """Found in the JSON, by the markers that were sent; not by the planner's own book-keeping."""
    for turn in report.turns[1:]:
        earlier = cold[(turn.extends or turn.turn - 1) - 1]
        common = shared(earlier.cacheable_data(), cold[turn.turn - 1].cacheable_data())
        marked = {
            marker.path for marker in report.turns[(turn.extends or turn.turn - 1) - 1].markers
        }
        ends = [earlier.offset(chunk.index + 1) for chunk in earlier if chunk.path in marked]
        assert len(ends) == len(marked)
        assert turn.reused_bytes == max((end for end in ends if end <= common), default=0)


def test_the_markers_are_those_in_the_request(report: Report, bodies: list[bytes]) -> None:
    for turn, body in zip(report.turns, bodies, strict=True):
        request = json.loads(body)
        found = {
            f"{section}[{at}]": block["cache_control"]
            for section in ("tools", "system")
            for at, block in enumerate(request[section])
            if "cache_control" in block
        } | {
            f"messages[{at}].content[{position}]": block["cache_control"]
            for at, message in enumerate(request["messages"])
            for position, block in enumerate(message["content"])
            if "cache_control" in block
        }
        assert {m.path: m.ttl for m in turn.markers} == {
            path: control.get("ttl", "5m") for path, control in found.items()
        }
        assert len(found) <= RULES.slots.value
        assert turn.notices == ()


def test_fingerprints_are_those_of_a_cold_rendering(report: Report, cold: list[Rendered]) -> None:
    assert [turn.fingerprint for turn in report.turns] == [cache.fingerprint(r).hex for r in cold]


def test_a_turn_writes_what_it_added(report: Report) -> None:
    """Also where the provider has to write all of it again: then only the block that changed."""
    for turn in report.turns:
        own = turn.volatile_bytes + turn.envelope_bytes
        if turn.turn in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12):
            assert own + turn.added_bytes <= turn.serialised_bytes <= own + turn.added_bytes + 60
    assert report.turns[0].serialised_bytes == report.turns[0].body_bytes
    assert report.turns[8].serialised_bytes < report.turns[8].added_bytes / 2
    assert report.turns[9].serialised_bytes < report.turns[9].added_bytes + 500
    assert report.serialised_bytes == sum(turn.serialised_bytes for turn in report.turns)


def test_every_breakpoint_reaches_the_minimum(report: Report, cold: list[Rendered]) -> None:
    """A marker below the provider's minimum would be shown and do nothing."""
    first = report.turns[0].markers[0]
    (marked,) = [chunk for chunk in cold[0] if chunk.path == first.path]
    size = cold[0].offset(marked.index + 1)
    assert cold[0].tokens_in(size) >= RULES.minimum_tokens.value


def test_the_clock_in_the_tail_moves_and_breaks_nothing(cold: list[Rendered]) -> None:
    tails = [r.data()[len(r.cacheable_data()) :] for r in cold[9:]]
    assert all(b"Current time: " in tail for tail in tails)
    assert len(set(tails)) == 3
