"""Missing packages are named, and nothing is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anaphora.client import observe
from anaphora.client.observe import missing_extra


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "name, feature, module, package",
    [
        ("Traces", "traces and meters", "opentelemetry", "opentelemetry-api"),
        ("Meters", "traces and meters", "opentelemetry", "opentelemetry-api"),
        ("Metrics", "metrics", "prometheus_client", "prometheus-client"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(
    name: str, feature: str, module: str, package: str
) -> None:
    # None in sys.modules: Python says of it that it is not there.
    said = run(
        f"import sys; sys.modules[{module!r}] = None\n"
        "from anaphora.client import observe\n"
        f"try: observe.{name}\n"
        "except ModuleNotFoundError as problem: print(problem.name, problem)"
    )
    assert said.splitlines() == [
        f"{module} {feature} need {package}; install it with: pip install 'anaphora[observe]'"
    ]


def test_something_else_that_is_missing_is_not_called_our_extra() -> None:
    problem = ModuleNotFoundError("no module", name="another")
    assert missing_extra(problem, "traces", module="opentelemetry", package="any") is problem


def test_watching_needs_neither_package() -> None:
    said = run(
        "import sys\n"
        "from anaphora.client.observe import Logs, Watchers\n"
        "print({'opentelemetry', 'prometheus_client'} & set(sys.modules))"
    )
    assert said.splitlines() == ["set()"]


def test_the_public_names_are_real_and_others_are_refused() -> None:
    for name in observe.__all__:
        assert getattr(observe, name) is not None
    assert set(observe.__all__) <= set(dir(observe))
    with pytest.raises(AttributeError, match="no attribute 'Spans'"):
        observe.Spans  # noqa: B018
