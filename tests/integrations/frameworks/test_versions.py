"""The frameworks that are installed here are those that the extras and the examples allow.

The tests of this folder run in environments of their own: `make integrations`, `make soak`.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
EXTRAS = ("langchain", "pydantic-ai")
EXAMPLES = ("dspy", "inspect-ai")


@pytest.mark.parametrize("name", [*EXTRAS, *EXAMPLES])
def test_installed_framework_is_within_its_range(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements" / "integrations.in").read_text().splitlines()
    if name in EXTRAS:
        lines = project["optional-dependencies"][name]
    requirement = next(Requirement(line) for line in lines if line.startswith(name))
    operators = {each.operator for each in requirement.specifier}
    assert operators == {">=", "<"}, "a framework has a lower and an upper bound"
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        pytest.skip(f"{requirement.name} is not installed")
    assert requirement.specifier.contains(installed)
    if Path(sys.prefix).name == "lowest":
        lowest = next(each.version for each in requirement.specifier if each.operator == ">=")
        assert (installed + ".0").startswith(lowest + "."), "the lower end is what is tested"
