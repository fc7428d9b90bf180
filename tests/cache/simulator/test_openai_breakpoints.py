"""OpenAI since gpt-5.6, by PROVIDERS.md, section 2c: breakpoints of the request and one of the
provider's own; a read needs a boundary in the current request."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anaphora import catalog
from anaphora.cache.simulator import Mark, Simulator, TokenRuns
from anaphora.rendered import Kind
from anaphora.values import Section

MODEL = "gpt-6-astra"


def simulator() -> Simulator:
    return Simulator(catalog.rules("openai", MODEL))


def conversation(turns: int, *, marks: Sequence[int] = (), implicit: bool = True) -> TokenRuns:
    """A developer message of 2,000 tokens, then question and answer in turns, ending with a
    question: block 0, then 2n+1 the questions of 10 tokens, 2n+2 the answers of 5."""
    blocks: list[tuple[str, int]] = [("developer", 2000)]
    for turn in range(turns):
        blocks += [(f"q{turn}", 10), (f"a{turn}", 5)]
    del blocks[-1]
    sections: list[Section] = ["system", *["messages"] * (len(blocks) - 1)]  # type: ignore[list-item]
    return TokenRuns.given(
        blocks,
        sections=sections,
        from_model=[at > 0 and at % 2 == 0 for at in range(len(blocks))],
        markers=tuple(Mark(at, "30m") for at in marks),
        automatic="30m" if implicit else None,
    )


def upto(block: int) -> int:
    """Tokens up to the end of a block of `talk`."""
    return 2000 + block // 2 * 5 + (block + 1) // 2 * 10


def test_the_implicit_breakpoint_stands_behind_the_latest_message() -> None:
    cache = simulator()
    assert cache.call(conversation(1), at=0).written == {"30m": 2010}
    outcome = cache.call(conversation(2), at=1)
    assert (outcome.read, outcome.written) == (2010, {"30m": 15})
    assert upto(3) == 2025


def test_what_is_read_is_exact_and_not_rounded() -> None:
    """Written 4,012, then read 4,012 (traces/README.md)."""
    cache = simulator()
    prompt = TokenRuns.given([("a", 4012)], automatic="30m")
    cache.call(prompt, at=0)
    assert cache.call(prompt, at=1).read == 4012


@pytest.mark.parametrize("earlier, read", [(20, upto(1)), (21, 0)])
def test_the_lookup_goes_back_twenty_earlier_message_ends(earlier: int, read: int) -> None:
    cache = simulator()
    cache.call(conversation(1), at=0)
    assert cache.call(conversation(1 + earlier), at=1).read == read


def test_the_end_of_the_developer_message_is_always_looked_up() -> None:
    cache = simulator()
    cache.call(conversation(1, implicit=False, marks=(0,)), at=0)
    assert cache.call(conversation(60), at=1).read == 2000


def test_a_run_of_tool_results_ends_once() -> None:
    kinds = [Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.TOOL_RESULT]
    model_blocks = (False, True, False, False)
    blocks = [("q", 2000), ("calls", 20), ("one", 300), ("two", 40)]
    prompt = TokenRuns.given(blocks, kinds=kinds, from_model=model_blocks, automatic="30m")
    assert list(prompt.turn_ends()) == [3, 0]
    assert simulator().call(prompt, at=0).written == {"30m": 2360}


MARKED = [
    # explicit markers of the reading request, implicit mode or not, what is read
    ((1,), False, upto(1)),
    ((3,), False, 0),
    ((), False, 0),
    ((), True, upto(1)),
]


@pytest.mark.parametrize("marks, implicit, read", MARKED)
def test_a_read_needs_a_boundary_in_the_current_request(
    marks: tuple[int, ...], implicit: bool, read: int
) -> None:
    cache = simulator()
    cache.call(conversation(1), at=0)
    assert cache.call(conversation(3, marks=marks, implicit=implicit), at=1).read == read


def test_an_extended_message_is_not_read() -> None:
    cache = simulator()
    cache.call(TokenRuns.given([("a", 2000)], automatic="30m"), at=0)
    assert cache.call(TokenRuns.given([("a and more", 2100)], automatic="30m"), at=1).read == 0


def test_the_first_two_and_the_latest_fifty_markers_are_looked_up() -> None:
    every = [2 * at + 1 for at in range(60)]
    for position, result in [(1, True), (3, True), (5, False), (19, False), (21, True)]:
        cache = simulator()
        cache.call(conversation(60, marks=(position,), implicit=False), at=0)
        read = cache.call(conversation(60, marks=every, implicit=False), at=1).read
        assert read == (upto(position) if result else 0), position


@pytest.mark.parametrize("implicit, first", [(True, 5), (False, 3)])
def test_four_breakpoints_write_the_implicit_one_among_them(implicit: bool, first: int) -> None:
    """Implicit uses one, so the latest three explicit write; in explicit mode the latest four."""
    cache = simulator()
    cache.call(conversation(6, marks=(1, 3, 5, 7, 9), implicit=implicit), at=0)
    written = [
        at
        for at in (1, 3, 5, 7, 9, 11)
        if cache.predict(conversation(6, marks=(at,), implicit=False), at=1).read == upto(at)
    ]
    assert written == [at for at in (3, 5, 7, 9, 11) if at >= first and (implicit or at < 11)]


def test_explicit_mode_without_markers_caches_nothing() -> None:
    cache = simulator()
    outcome = [cache.call(conversation(3, implicit=False), at=at) for at in (0, 1)][1]
    assert (outcome.read, outcome.written) == (0, {})


@pytest.mark.parametrize("tokens, written", [(1023, {}), (1024, {"30m": 1024})])
def test_a_write_needs_the_minimum(tokens: int, written: dict[str, int]) -> None:
    assert (
        simulator().call(TokenRuns.given([("a", tokens)], automatic="30m"), at=0).written == written
    )


def test_a_read_restarts_the_half_hour() -> None:
    cache = simulator()
    prompt = TokenRuns.given([("a", 2000)], automatic="30m")
    cache.call(prompt, at=0)
    assert [cache.call(prompt, at=at).read for at in (1799, 3598)] == [2000, 2000]
    assert cache.call(prompt, at=3598 + 1801).read == 0


def test_twelve_hours_are_written_for_twelve_hours() -> None:
    cache = simulator()
    marks = (Mark(0, "12h"), Mark(1, "30m"))
    prompt = TokenRuns.given([("a", 2000), ("b", 100)], markers=marks)
    assert cache.call(prompt, at=0).written == {"12h": 2000, "30m": 100}
    assert cache.call(prompt, at=40_000).read == 2000
