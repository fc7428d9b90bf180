"""The quick readers of bills and the readers of conversations see the same bills."""

from __future__ import annotations

import random

import pytest
from support.session_bills import billed, continued, in_conversations, shared_names, shared_session

from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.programs import READERS, bills

LINE_PROGRAMS: tuple[ProgramName, ...] = ("claude_code", "codex", "copilot")
FILES = [(program, name) for program in LINE_PROGRAMS for name in shared_names(program)]


@pytest.mark.parametrize(("program", "name"), FILES)
def test_same_bills_as_the_conversations(program: ProgramName, name: str) -> None:
    lines = shared_session(program, name)
    expected = in_conversations(program, lines)
    assert billed(bills(READERS[program](), lines, name)) == expected
    cuts = sorted(random.Random(name).choices(range(len(lines)), k=40))
    assert billed(continued(program, lines, cuts)) == expected
