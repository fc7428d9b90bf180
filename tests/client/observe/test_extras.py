"""Missing packages are named, and nothing is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anaphora.client import observe
from anaphora.client.observe.export import missing_extra


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
def test_missing_package_error_names_the_extra(
    name: str, feature: str, module: str, package: str
) -> None:
    # None in sys.modules makes an import fail.
    output = run(
        f"import sys; sys.modules[{module!r}] = None\n"
        "from anaphora.client import observe\n"
        f"try: observe.{name}\n"
        "except ModuleNotFoundError as problem: print(problem.name, problem)"
    )
    assert output.splitlines() == [
        f"{module} {feature} need {package}; install it with: pip install 'anaphora[observe]'"
    ]


def test_other_missing_modules_raise_their_own_error() -> None:
    problem = ModuleNotFoundError("no module", name="another")
    assert missing_extra(problem, "traces", module="opentelemetry", package="any") is problem


def test_watchers_need_neither_package() -> None:
    output = run(
        "import sys\n"
        "from anaphora.client.observe import Logs, Watchers\n"
        "print({'opentelemetry', 'prometheus_client'} & set(sys.modules))"
    )
    assert output.splitlines() == ["set()"]


def test_public_names_exist_and_others_raise() -> None:
    for name in observe.__all__:
        assert getattr(observe, name) is not None
    assert set(observe.__all__) <= set(dir(observe))
    with pytest.raises(AttributeError, match="no attribute 'Spans'"):
        observe.Spans  # noqa: B018
