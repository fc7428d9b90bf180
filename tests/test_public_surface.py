"""What users may rely on by name, and what importing it costs them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from support.tables import each_row

import anaphora
from anaphora.values import Reply

MODULES = [
    "anaphora",
    "anaphora.values",
    "anaphora.prompt",
    "anaphora.tools",
    "anaphora.rendered",
    "anaphora.catalog",
    "anaphora.wire.anthropic",
    "anaphora.cache",
    "anaphora.client.adapter",
    "anaphora.audit",
    "anaphora.daemon",
]


@each_row("name", MODULES)
def test_all_is_complete_and_real(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None


def test_the_root_holds_the_names_used_most() -> None:
    expected = """
        AsyncClient CachePolicy Call Client Conversation Document Image KeepWarm McpServer Message Params PromptBlock
        PromptIR RenderedContext Response RunResult Session SyncSession Text Tool ToolCall ToolRegistry
        ToolResult Usage acomplete complete errors observe observing
    """
    assert anaphora.__all__ == expected.split()


def test_late_names_are_listed_and_unknown_ones_refused() -> None:
    assert {"AsyncClient", "Client", "ToolRegistry"} <= set(dir(anaphora))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        anaphora.nonsense  # noqa: B018


def loaded_by(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(' '.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_import_loads_msgspec_and_blake3_and_nothing_else_heavy() -> None:
    ours = loaded_by("import anaphora") - loaded_by("import msgspec, blake3")
    foreign = {module.partition(".")[0] for module in ours} - {"anaphora"}
    # What is left is small and of the standard library.
    assert foreign <= {"__future__", "array", "math", "threading", "_weakrefset"}, foreign
    assert not {name for name in ours if name.startswith(("anaphora.cli", "anaphora.client"))}


def test_the_pure_layers_load_no_event_loop_and_no_socket() -> None:
    ours = loaded_by(
        "import anaphora.cache, anaphora.catalog, anaphora.wire.anthropic"
    ) - loaded_by("import msgspec, blake3")
    assert not ours & {"asyncio", "socket", "ssl", "http", "logging", "random", "tomllib"}


@each_row(
    "kind",
    [
        anaphora.Message,
        anaphora.Params,
        anaphora.PromptIR,
        anaphora.Call,
        anaphora.RenderedContext,
        Reply,
        anaphora.Usage,
    ],
)
def test_what_has_many_fields_takes_them_by_name_only(kind: type) -> None:
    with pytest.raises(TypeError, match="positional"):
        kind("positional")
