"""One rich request of each wire, changed in one place at a time: readers that accept it see the
same functions, markers, roles, ids and inline bytes."""

from __future__ import annotations

import pytest
from support.readers import disagreements
from support.rich_bodies import RICH


@pytest.mark.parametrize("wire", RICH)
def test_readers_see_the_same(wire: str) -> None:
    bodies = list(disagreements(wire))
    assert len(bodies) > 750
    assert [body for body in bodies if body.reasons] == []
