"""One rich request of each wire, changed in one place at a time: readers that accept it see the
same functions, markers, roles, ids and inline bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.judge import disagreements
from support.request_fields_page import page
from support.rich_bodies import RICH

PAGE = Path(__file__).parents[2] / "docs" / "request-fields.md"


@pytest.mark.parametrize("wire", RICH)
@pytest.mark.long
def test_readers_see_the_same(wire: str) -> None:
    bodies = list(disagreements(wire))
    assert len(bodies) > 750
    assert [body for body in bodies if body.reasons] == []


def test_page_of_request_fields_is_current() -> None:
    if os.environ.get("ANAPHORA_UPDATE_DOCS"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), (
        "docs/request-fields.md is outdated; to regenerate it, run\n"
        "    ANAPHORA_UPDATE_DOCS=1 python -m pytest tests/laws/test_readers.py\n"
    )
