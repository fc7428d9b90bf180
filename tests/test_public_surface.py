"""What users may rely on by name, and what importing it costs them."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.version import Version
from support.tables import each_row

import anaphora
from anaphora.cli.common import anaphora as anaphora_command
from anaphora.daemon.faces import PLAIN_ROUTES
from anaphora.daemon.rpc.methods import METHODS
from anaphora.values import Reply

ROOT = Path(__file__).parent.parent
#: All public names, commands, options, methods and routes (docs/stability.md). A removed line breaks
#: programs; an added one is promised from the next release on. To write it again:
#: PYTHONPATH=tests python tests/test_public_surface.py > tests/public_surface.txt
SURFACE = Path(__file__).with_name("public_surface.txt")

#: Modules whose `__all__` is public.
MODULES = """
    anaphora anaphora.audit anaphora.cache anaphora.catalog anaphora.client.adapter
    anaphora.client.observe anaphora.client.structured anaphora.emulator anaphora.errors
    anaphora.integrations.sdk anaphora.prompt anaphora.replay anaphora.usage.fleet anaphora.values
    anaphora.wire
""".split()
#: Adapters, which need their framework.
ADAPTERS = """
    anaphora.integrations.framework_client.FrameworkClient
    anaphora.integrations.langchain.ChatAnaphora anaphora.integrations.pydantic_ai.AnaphoraModel
""".split()
FIXTURES = ("anaphora_replay", "cache_contract", "emulator")


def surface() -> Iterator[str]:
    for name in MODULES:
        for public in sorted(importlib.import_module(name).__all__):
            yield f"name {name}.{public}"
    yield from (f"name {name}" for name in ADAPTERS)
    yield from (f"fixture {name}" for name in FIXTURES)
    yield from _commands(anaphora_command, ())
    yield from (f"method {name}" for name in sorted(METHODS))
    yield from (f"route {method} {path}" for method, path in sorted(PLAIN_ROUTES))


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command, info_name="anaphora")
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield " ".join(("command anaphora", *path, *sorted(param.opts + param.secondary_opts)))
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            assert below is not None
            if not below.hidden:
                yield " ".join(("command anaphora", *path, name))
                yield from _commands(below, (*path, name))


def test_the_public_surface_is_the_written_one() -> None:
    written = SURFACE.read_text().splitlines()
    now = list(surface())
    assert [line for line in written if line not in now] == [], "gone, or renamed"
    assert [line for line in now if line not in written] == [], "public from now on"


def test_the_page_names_every_public_module() -> None:
    text = (ROOT / "docs" / "stability.md").read_text()
    listed = re.findall(r"^\| `(anaphora[\w.]*)` \|", text, re.MULTILINE)
    assert listed == [*MODULES, *sorted({name.rpartition(".")[0] for name in ADAPTERS})]


@each_row("name", ADAPTERS)
def test_adapters_have_their_class(name: str) -> None:
    module, _, public = name.rpartition(".")
    path = ROOT.joinpath("src", *module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert re.search(rf"^class {public}\b", file.read_text(), re.MULTILINE)


def test_fixtures_are_those_of_the_plugin() -> None:
    assert set(FIXTURES) <= set(dir(importlib.import_module("anaphora.pytest_plugin")))


def test_one_version() -> None:
    """Of the source, of the installed metadata, and of the command."""
    stated = runpy.run_path(str(ROOT / "src" / "anaphora" / "version.py"))["__version__"]
    shown = CliRunner().invoke(anaphora_command, ["--version"])
    assert anaphora.__version__ == importlib.metadata.version("anaphora") == stated
    assert shown.output == f"anaphora {stated}\n"
    assert f"\n## {stated}" in (ROOT / "CHANGELOG.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    (status,) = (text for text in project["classifiers"] if text.startswith("Development Status"))
    assert ("Beta" in status) == Version(stated).is_prerelease


@each_row("name", MODULES)
def test_all_is_complete_and_real(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None


def test_every_error_is_public() -> None:
    classes = {
        name
        for name, value in vars(anaphora.errors).items()
        if isinstance(value, type) and issubclass(value, anaphora.errors.AnaphoraError)
    }
    assert set(anaphora.errors.__all__) == classes


def test_the_root_holds_the_names_used_most() -> None:
    expected = """
        AsyncClient CachePolicy Call Client Conversation Document Image Message Params PromptBlock
        PromptIR RenderedContext Response RunResult Session SyncSession Text Tool ToolCall ToolRegistry
        ToolResult Usage acomplete complete errors from_json mcp_tools observe observing to_json
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


if __name__ == "__main__":
    print("\n".join(surface()))
