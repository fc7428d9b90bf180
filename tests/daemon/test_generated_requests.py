"""Generated requests at every endpoint: an answer comes, and it is never an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from support.daemon import GRANT, KEY, TestedDaemon, running_daemon
from support.daemon_openapi import BODIES, document
from support.waiting import PATIENCE

from anaphora import emulator

#: Of each call, and of each other operation: 303 in all.
EXAMPLES, OTHERS = 21, 3

OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in document()["paths"].items()
    for method in methods
]
ALLOWED = ["server_tools", "remote_mcp", "stored_responses", {"fields": ["*"]}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedDaemon]:
    grant: dict[str, Any] = {**GRANT, "llm": {**GRANT["llm"], "allow": ALLOWED}}
    with (
        emulator.running() as emu,
        running_daemon(
            tmp_path_factory.mktemp("daemon"), emu, extensions={"demo": grant}
        ) as running,
    ):
        yield running


@cache
def operations() -> dict[str, Any]:
    import schemathesis  # most processes of a run do not need it, and it takes long to import
    from schemathesis.core.result import Ok

    found = schemathesis.openapi.from_dict(document()).get_all_operations()
    return {each.ok().label: each.ok() for each in found if isinstance(each, Ok)}


def test_every_operation_is_known() -> None:
    assert sorted(operations()) == sorted(OPERATIONS)


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_request_gets_an_answer(label: str, examples: int, daemon: TestedDaemon) -> None:
    """D12: whatever is sent, the answer is no 500 and holds no key."""
    from schemathesis import GenerationMode

    operation = operations()[label]
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
        if operation.body or operation.path_parameters
        else st.nothing(),
    )

    @seed(19)
    @settings(
        max_examples=examples if operation.path in (*BODIES, "/rpc") else OTHERS,
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
    )
    @given(cases)
    def answered(case: Any) -> None:
        response = case.call(base_url=daemon.url, headers=daemon.headers(), timeout=PATIENCE)
        # 502 and 503 are answers about a provider, which the emulator gives to some requests.
        assert response.status_code != 500, response.text
        assert response.status_code < 600
        assert KEY not in response.text

    answered()
