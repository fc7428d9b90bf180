"""Positions in a log that was filled at once, turn by turn, or as a fork."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from anaphora.rendered import ChunkLog, Kind, LogAppend

#: A message: its id (few, so that some come twice), its role, and its chunks with their splices.
chunks = st.lists(st.tuples(st.binary(max_size=5), st.sampled_from([None, -1, 0])), max_size=3)
messages = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("ua"), chunks), max_size=6)
Messages = list[tuple[str, str, list[tuple[bytes, int | None]]]]


def fill(to: LogAppend, added: Messages) -> LogAppend:
    for message_id, role, chunks in added:
        if chunks:
            to.open(role)
        for data, splice in chunks:
            to.chunk(Kind.TEXT, data, splice)
        to.end_message(message_id)
    return to


def everything(log: ChunkLog) -> tuple[object, ...]:
    counted = (log.ends, log.splices, log.message_ends, log.opens)
    return bytes(log.buffer), [list(each) for each in counted], log.kinds, log.ids, log.roles


@given(messages, messages)
def test_log_is_independent_of_how_it_was_filled(one: Messages, two: Messages) -> None:
    whole = ChunkLog(fill(LogAppend(), one + two))
    begun = ChunkLog(fill(LogAppend(), one))
    at = len(begun)
    grown = begun.append(fill(LogAppend(at, len(one)), two))
    forked = grown.append(fill(LogAppend(at, len(one)), two))
    assert grown is begun
    assert everything(whole) == everything(grown) == everything(forked)
    assert (forked is grown) == (not two)


@given(messages)
def test_ends_and_splices_count_from_the_beginning_of_the_log(added: Messages) -> None:
    log = ChunkLog(fill(LogAppend(), added))
    expected = [chunk for _, _, chunks in added for chunk in chunks]
    for at, (data, splice) in enumerate(expected):
        assert log.slice(log.start(at), log.ends[at]) == data
        assert log.splices[at] == (-1 if splice is None else log.ends[at] + splice)


@given(messages, messages)
def test_id_finds_the_last_message_with_it(one: Messages, two: Messages) -> None:
    log = ChunkLog(fill(LogAppend(), one))
    for so_far in (one, one + two):
        ids = [message_id for message_id, _, _ in so_far]
        for message_id in "abc":
            last = max((at for at, each in enumerate(ids) if each == message_id), default=None)
            assert log.position_of(message_id) == last
        if so_far is one:
            log = log.append(fill(LogAppend(len(log), len(one)), two))


@given(messages)
def test_every_chunk_is_found_in_its_message_on_the_wire(added: Messages) -> None:
    log = ChunkLog(fill(LogAppend(), added))
    found = [log.wire_message_of(chunk) for chunk in range(len(log))]
    assert found == [bisect_right(log.opens, chunk) - 1 for chunk in range(len(log))]
