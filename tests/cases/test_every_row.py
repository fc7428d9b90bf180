"""Every thread of CASES A to E has a test that is named after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared" / "reference" / "CASES.md"

#: Where a name of the page is shortened in the names of tests.
_SHORT = {
    "litellm_docs": "litellm",
    "claude_code_cache_fix": "cache_fix",
    "vellum_assistant": "vellum",
}


def threads() -> Iterator[str]:
    """`claude_code_43657` and the like, of the sections A to E."""
    text = CASES.read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if section[0] not in "ABCDE":
            continue
        for row in section.splitlines():
            if not row.startswith("|") or "#" not in row:
                continue
            name = ""
            for thread in row.split("|")[1].split(","):
                project_name, _, number = thread.strip().partition("#")
                name = re.sub(r"\W", "_", project_name).lower() or name
                yield f"{_SHORT.get(name, name)}_{number}"


def words(name: str) -> list[str]:
    return name.lower().split("_")


def written() -> set[str]:
    """The names of all tests."""
    return {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(encoding="utf-8"), re.M)
    }


def names(test: str, thread: str) -> bool:
    """A test may name several threads; of the same project only the first with the project."""
    *project, number = words(thread)
    result = words(test)
    return number in result and all(word in result for word in project)


@pytest.mark.skipif(not CASES.exists(), reason=f"no page of cases at {CASES}")
def test_every_row_of_a_to_e_has_a_test_of_its_name() -> None:
    known = written()
    listed = list(threads())
    assert len(listed) >= 48
    assert [one for one in listed if not any(names(test, one) for test in known)] == []
