"""Fixture folders for tests, and what commands report of them."""

from __future__ import annotations

import re
from pathlib import Path

from blake3 import blake3

from anaphora.replay.fixture import Fixture, FixturePiece
from anaphora.replay.store import FixtureStore


def key_of(name: str) -> str:
    return blake3(name.encode()).hexdigest()


def small_fixture(name: str, text: str = "hello") -> Fixture:
    return Fixture(
        key=key_of(name),
        provider="anthropic",
        model="m",
        path="/v1/messages",
        request=b'{"model":"m"}',
        pieces=(FixturePiece(0.5, text.encode()),),
    )


def recorded_folder(folder: Path, count: int = 4) -> list[Path]:
    """A folder with fixtures; their files, in the order of the index."""
    store = FixtureStore.open(folder, create=True, sync=False)
    store.add_all(small_fixture(str(number), f"answer {number}") for number in range(count))
    return [folder / entry.path for entry in store.entries]


def reported(printed: str) -> tuple[int, int, int]:
    """Recorded, replayed and missed exchanges in the report of `record` or `replay`."""
    counts = dict.fromkeys(("recorded", "replayed"), 0)
    for number, kind in re.findall(r"([\d,]+) exchanges? (recorded in|replayed from)", printed):
        counts[kind.split()[0]] = int(number.replace(",", ""))
    assert "exchange" in printed, printed
    return counts["recorded"], counts["replayed"], printed.count("no recording: ")
