"""300 kills of recording processes: nothing invalid is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.killed import kill_recorders


@pytest.mark.parametrize(
    "kills, workers, signed", [(150, 1, False), (75, 1, True), (75, 3, False)], ids=str
)
def test_killed_recorders(tmp_path: Path, kills: int, workers: int, signed: bool) -> None:
    left = kill_recorders(
        tmp_path / "recordings", kills, workers=workers, signed=signed, seed=kills
    )
    print(f"{kills} kills, {workers} at a time: {left} fixtures left, all valid")
