"""Maps with a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anaphora.bounded import BoundedMap


def test_oldest_entry_is_dropped() -> None:
    seen = BoundedMap[str, int](2)
    seen["a"], seen["b"], seen["c"] = 1, 2, 3
    assert dict(seen) == {"b": 2, "c": 3}


def test_used_entry_stays() -> None:
    seen = BoundedMap[str, int](2)
    seen["a"], seen["b"] = 1, 2
    assert seen.use("a") == 1
    seen["c"] = 3
    assert list(seen) == ["a", "c"]


def test_reading_is_no_use() -> None:
    seen = BoundedMap[str, int](2)
    seen["a"], seen["b"] = 1, 2
    assert (seen["a"], seen.get("a"), "a" in seen) == (1, 1, True)
    seen["c"] = 3
    assert list(seen) == ["b", "c"]


def test_missing_key() -> None:
    seen = BoundedMap[str, int](2)
    assert seen.use("a") is None
    assert seen.get("a", 7) == 7


def test_dropped_entries_are_reported() -> None:
    dropped: list[tuple[str, int]] = []
    seen = BoundedMap[str, int](1, on_drop=lambda key, value: dropped.append((key, value)))
    seen["a"], seen["b"] = 1, 2
    del seen["b"]
    assert dropped == [("a", 1)]


def test_entry_above_the_size_stays_alone() -> None:
    seen = BoundedMap[str, bytes](most_size=10, size_of=len)
    seen["a"], seen["b"], seen["c"] = b"1234", b"1234", b"x" * 20
    assert list(seen) == ["c"]
    assert seen.size == 20


@given(st.lists(st.tuples(st.sampled_from("set use del clear".split()), st.integers(0, 9))))
def test_size_and_number_stay_within_limits(steps: list[tuple[str, int]]) -> None:
    seen = BoundedMap[int, bytes](4, most_size=40, size_of=len)
    for step, number in steps:
        match step:
            case "set":
                seen[number] = b"x" * (2 * number)
            case "use":
                seen.use(number)
            case "del":
                seen.pop(number, None)
            case _:
                seen.clear()
        assert seen.size == sum(map(len, seen.values()))
        assert len(seen) <= 4
        assert seen.size <= 40
