"""One and many: counts and their nouns in messages, reports and reprs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.tables import each_row

from anaphora import Conversation, Message
from anaphora.cli.main import main
from anaphora.wording import counted

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"


@each_row(
    "count, noun, plural, expected",
    [
        (0, "turn", "", "0 turns"),
        (1, "turn", "", "1 turn"),
        (2, "turn", "", "2 turns"),
        (1024, "token", "", "1,024 tokens"),
        (1, "reply", "replies", "1 reply"),
        (3, "reply", "replies", "3 replies"),
    ],
)
def test_counted(count: int, noun: str, plural: str, expected: str) -> None:
    assert counted(count, noun, plural) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", *(str(EXAMPLES / name) for name in ("turn-1.json", "turn-2.json"))],
        ["explain", *(str(EXAMPLES / name) for name in ("turn-1.json", "turn-2-next-day.json"))],
        ["lint", str(EXAMPLES / "turn-1.json")],
        ["simulate", str(EXAMPLES / "session.jsonl")],
    ],
    ids=lambda arguments: arguments[0],
)
def test_reports_have_no_plural_of_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    main(arguments)
    shown: Any = capsys.readouterr()
    assert shown.out
    assert not re.search(r"(?<![\d.,])1 [a-z]+s\b(?<! is)(?<! has)", shown.out)


def test_reprs() -> None:
    one = Conversation([Message.user("hi")])
    assert repr(one) == "<Conversation of 1 message>"
    assert repr(one.append(Message.user("hi"))) == "<Conversation of 2 messages>"


#: A count that is followed by a plural, and is not a constant, a limit or the whole of "n of m".
_PLURAL = re.compile(
    r"\{[^{}]*(?:len\(|count|turns|calls|hits|attempts)[^{}]*\} (?:more |other |billed )?"
    r"(turns|calls|files|messages|blocks|attempts|conversations|hits|reasons|warnings)\b"
)
#: Where the count is above one.
_SEVERAL = (
    'f"{result.turns} turns" if result.turns > 1',
    '{len(attempts)} attempts" if len(attempts) > 1',
    "conversations begin with it",
    'else f"{count} conversations"',
    "{share} turns a bar",
    "{turn} turns",
    "{TURNS} turns",
    "{result.turns} turns, $",
)


def test_counts_go_through_counted() -> None:
    """A new message with a bare plural behind a count is found here."""
    for folder in ("src", "examples"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if _PLURAL.search(line) and not any(several in line for several in _SEVERAL):
                    pytest.fail(f"{file.relative_to(ROOT)}:{number}: use counted(): {line.strip()}")
