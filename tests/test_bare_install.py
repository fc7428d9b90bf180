"""The wheel with each combination of extras: calls work, and show dollars.

The wheel is built and unpacked beside links to exactly the packages that it requires, and Python is
started without its site-packages: whatever else is installed here is out of reach.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.installed import CALLS, COMMANDS, build, wheel_problems
from support.usage_home import write_home
from support.waiting import PATIENCE

from anaphora import emulator
from anaphora.cli.common import COMMANDS as COMMAND_NAMES

ROOT = Path(__file__).parent.parent


class Run:
    """Runs Python with what is installed."""

    def __init__(self, python: list[str], environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self._python, self._folder = python, folder

    def words(self, *arguments: str) -> list[str]:
        return [*self._python, *arguments]

    def __call__(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*arguments),
            env=self.environment | more, cwd=self._folder, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip

    def commands(
        self, *lines: Sequence[str], **more: str
    ) -> list[subprocess.CompletedProcess[str]]:
        """Runs several commands in one process, which takes longer to start than to run most."""
        shown = passed(self("-c", COMMANDS, json.dumps(lines), **more))
        return [
            subprocess.CompletedProcess(line, *done)
            for line, done in zip(lines, json.loads(shown), strict=True)
        ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def emu() -> Iterator[emulator.Emulator]:
    with emulator.running() as running:
        yield running


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files; all installs share them, and what Python compiles of them. What it has
    compiled of the same files here is there from the start."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    for source in (ROOT / "src").rglob("*.py"):
        file, compiled = folder / source.relative_to(ROOT / "src"), cache_from_source(str(source))
        if os.path.exists(compiled) and file.read_bytes() == source.read_bytes():
            target = Path(cache_from_source(str(file)))
            target.parent.mkdir(exist_ok=True)
            shutil.copy(compiled, target)
            shutil.copystat(source, file)  # it is valid for a file of that time
    return folder


@pytest.fixture(scope="module")
def site(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`site("emulator,proxy")` is a folder with that."""

    @cache
    def fill(extras: str) -> Path:
        folder = tmp_path_factory.mktemp("installed") / "site"
        folder.mkdir()
        for top in unpacked.iterdir():
            (folder / top.name).symlink_to(top)
        (info,) = folder.glob("*.dist-info")
        _link(Distribution.at(info), set(filter(None, extras.split(","))), folder, set())
        return folder

    return fill


@pytest.fixture
def installed(site: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Run]:
    """`installed("emulator,proxy")` is a way to run Python with that."""

    def install(extras: str) -> Run:
        kept = {name: os.environ[name] for name in ("PATH", "SSL_CERT_FILE")}
        home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        environment = kept | home | {"PYTHONPATH": str(site(extras)), "PYTHONUTF8": "1"}

        # `-S`: no site-packages, neither this environment's nor the user's.
        return Run([sys.executable, "-S"], environment, tmp_path)

    return install


def _link(dist: Distribution, extras: set[str], site: Path, done: set[str]) -> None:
    """Links to everything that a distribution requires."""
    for line in dist.requires or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not any(
            wanted.marker.evaluate({"extra": extra}) for extra in extras | {""}
        ):
            continue
        name = canonicalize_name(wanted.name)
        if name in done:
            continue
        done.add(name)
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
        _link(found, set(wanted.extras), site, done)


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


COMBINATIONS = {
    "": ("click", "htpy", "rich"),
    "cli": ("click", "htpy", "rich"),  # its name is still accepted
    "emulator": ("click", "htpy", "rich", "granian"),
}
every = pytest.mark.parametrize("extras", COMBINATIONS)
#: Nothing; the others take long to start.
least = pytest.mark.parametrize(
    "extras",
    ["", *(pytest.param(extras, marks=pytest.mark.soak) for extras in COMBINATIONS if extras)],
)


def test_the_wheel_asks_for_no_price_package(unpacked: Path) -> None:
    assert (unpacked / "anaphora" / "catalog" / "price_table.json").exists()
    (info,) = unpacked.glob("*.dist-info")
    dist = Distribution.at(info)
    assert "genai" not in " ".join(dist.requires or ())
    extras = "all aws azure cli daemon emulator fleet google langchain mcp nodes".split()
    extras += "observe proxy pydantic-ai pytest sign".split()
    assert dist.metadata.get_all("Provides-Extra") == extras


def test_junk_in_a_wheel_is_found(wheel: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(wheel, tmp_path))
    with zipfile.ZipFile(copy, "a") as packed:
        packed.writestr("tests/test_it.py", "")
        packed.writestr("anaphora/__pycache__/it.cpython-311.pyc", "")
    assert wheel_problems(copy) == [
        "anaphora/__pycache__/it.cpython-311.pyc: no part of the package",
        "tests/test_it.py: no part of the package",
    ]


@every
def test_only_what_was_asked_for_can_be_imported(
    installed: Callable[[str], Run], extras: str
) -> None:
    """Otherwise the tests below would prove nothing."""
    optional = ["click", "htpy", "rich", "granian", "genai_prices", "pydantic", "httpx"]
    optional += ["prometheus_client", "opentelemetry", "pytest"]
    program = (
        "import importlib.util as u, sys, anaphora\n"
        f"print(*[name for name in {optional} if u.find_spec(name)])\n"
        "print(anaphora.__file__)"
    )
    names, where = passed(installed(extras)("-c", program)).splitlines()
    assert set(names.split()) == {*COMBINATIONS[extras]}
    assert "/site/anaphora/" in where


@least
def test_calls_return_their_answers_with_dollars(
    installed: Callable[[str], Run], emu: emulator.Emulator, extras: str
) -> None:
    shown = passed(installed(extras)("-c", CALLS, emu.url)).split()
    assert len(shown) == 7
    assert all(float(cost_usd) > 0 for cost_usd in shown)


def test_the_readme_examples(installed: Callable[[str], Run], emu: emulator.Emulator) -> None:
    """With nothing but `pip install anaphora`."""
    page = (ROOT / "README.md").read_text()
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    key = {"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": emu.url}
    first, hit = passed(installed("")("-c", program, **key)).splitlines()
    assert re.match(r"0\.0\d+ First call: nothing cached yet\.$", first)
    assert re.match(r"0\.0\d+ Hit: .* saved \$0\.\d+\.$", hit)


def test_the_wheel_holds_the_package_alone_and_a_readme_without_relative_links(wheel: Path) -> None:
    assert wheel_problems(wheel) == []


def test_the_links_lead_to_the_repository_where_it_is_known() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "package_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[the client](docs/client.md), [here](#here), [docs/ask.md](docs/ask.md)"
    picture = (
        '<picture>\n  <source srcset="docs/dark.svg">\n  <img src="docs/a.svg">\n</picture>\n\n'
    )
    home = "https://example.org/anaphora/"
    assert module.with_absolute_links(text, home) == (
        "[the client](https://example.org/anaphora/blob/main/docs/client.md), [here](#here),"
        " [docs/ask.md](https://example.org/anaphora/blob/main/docs/ask.md)"
    )
    assert module.with_absolute_links(text, None) == (
        "the client (`docs/client.md`), [here](#here), docs/ask.md"
    )
    raw = "https://example.org/anaphora/raw/main/docs"
    shown = module.with_absolute_links(picture + text, home)
    assert f'srcset="{raw}/dark.svg"' in shown
    assert f'<img src="{raw}/a.svg">' in shown
    assert module.with_absolute_links(picture + "text", None) == "text", "no broken picture"


def test_pages_name_a_package_index_only_if_releases_are_published_there() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        module = importlib.import_module("package_readme")
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    published = module.is_published(ROOT)
    for page in module.PAGES:
        text = (ROOT / page).read_text()
        assert module.with_ways(text, published=published) == text, "run scripts/package_readme.py"
        other = module.with_ways(text, published=not published)
        assert ("uvx anaphora usage" in text) == (published and "uvx" in text)
        assert ("uvx anaphora usage" in other) == (not published and "uvx" in text)


@pytest.mark.long
def test_ask_the_emulator(installed: Callable[[str], Run]) -> None:
    run = installed("emulator")
    words = ("ask", "--emulate", "Hello?")
    done, as_json = run.commands(words, (*words, "--json"))
    assert passed(done).strip()
    assert re.search(r" · \$0\.\d+$", done.stderr, re.M), done.stderr
    reported = json.loads(passed(as_json))
    assert float(reported["cost_usd"]) > 0
    assert reported["notices"] == []


def test_ask_a_provider_of_llm_yaml(
    installed: Callable[[str], Run], emu: emulator.Emulator, tmp_path: Path
) -> None:
    run = installed("")
    text = "providers:\n  main: {wire: anthropic, base_url: %s, key: {env: KEY}, model: %s}\n"
    (tmp_path / "llm.yaml").write_text(text % (emu.url, "claude-sonnet-4-5"))
    known, done = run.commands(
        ("ask", "Hello?"), ("ask", "-m", "claude-fable-5-2", "Hello?"), KEY="any"
    )
    assert passed(known).strip()
    assert re.search(r" · \$0\.\d+$", known.stderr, re.M), known.stderr
    assert passed(done).strip(), "an unknown price keeps no answer back"
    assert "no price is known for claude-fable-5-2 at main" in done.stderr
    assert "price unknown" in done.stderr


@pytest.mark.long
def test_usage_is_the_first_command_of_a_newcomer(
    installed: Callable[[str], Run], tmp_path: Path
) -> None:
    """With nothing but `pip install anaphora`, as `uvx anaphora usage` does."""
    run = installed("")
    shown, nothing = run.commands(("usage", "--help"), ("usage",))
    assert "which part was a lost cache" in passed(shown)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "no session file of an agent program was found" in nothing.stderr
    write_home(tmp_path)
    file = tmp_path / "usage.html"
    page, html, lost = run.commands(("usage",), ("usage", "--html", str(file)), ("usage", "losses"))
    assert passed(page).startswith("$0.2984 at API prices")
    assert passed(html) == ""
    assert "cache entry expired" in file.read_text()
    assert "1. $0.07" in passed(lost)
    words = run.words("-m", "anaphora_statusline")
    line = subprocess.run(words, env=run.environment, input=b"", capture_output=True, check=True)
    assert line.stdout == b"$0.00 today\n"


@pytest.mark.long
def test_every_command_has_help_without_extras(installed: Callable[[str], Run]) -> None:
    for done in installed("").commands(*((name, "--help") for name in COMMAND_NAMES)):
        assert passed(done).startswith(f"Usage: anaphora {done.args[0]}")


@pytest.mark.long
def test_the_pytest_plugin_alone(installed: Callable[[str], Run], tmp_path: Path) -> None:
    """With nothing but `pip install anaphora[pytest]`, and without an SDK."""
    test = """
import json, os, urllib.request

def test_agent(cache_contract):
    body = {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": []}
    body["messages"].append({"role": "user", "content": "Hello?"})
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).close()
    assert cache_contract.cost_usd > 0
"""
    (tmp_path / "test_agent.py").write_text(test)
    words = ("-m", "pytest", "--assert=plain", "--anaphora-report=cache.md")
    assert "1 passed" in passed(installed("pytest")(*words))
    assert "✅ 1 cache contract held." in (tmp_path / "cache.md").read_text()


def test_tables_show_prices(installed: Callable[[str], Run]) -> None:
    session = str(ROOT / "docs" / "examples" / "session.jsonl")
    models, simulated = installed("").commands(
        ("models", "anthropic/claude-opus-5-5"), ("simulate", "--json", session)
    )
    _, row, *_ = passed(models).splitlines()
    assert row.split()[-2:] == ["4", "20"]
    reported = json.loads(passed(simulated))
    assert float(reported["total"]["predicted"]["cost_usd"]) > 0


def test_a_missing_extra_is_named_without_a_traceback(installed: Callable[[str], Run]) -> None:
    run = installed("")
    done = run("-m", "anaphora", "ask", "--emulate", "Hello?")
    assert done.returncode == 7
    assert "pip install 'anaphora[emulator]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_the_extra_proxy_alone_has_the_command(installed: Callable[[str], Run]) -> None:
    """With nothing but `pip install anaphora[proxy]`."""
    run = installed("proxy")
    program = (sys.executable, "-c", "print('ran')")
    done = run("-m", "anaphora", "watch", "--", *program)
    assert passed(done) == "ran\n"
    assert done.stderr.startswith("no calls\n")
    assert "0 exchanges recorded" in run("-m", "anaphora", "record", "--", *program).stderr


def test_a_missing_proxy_is_named(installed: Callable[[str], Run]) -> None:
    names = ("watch", "record", "replay")
    for done in installed("").commands(*((name, "--", "true") for name in names)):
        name = done.args[0]
        subject = "watch" if name == "watch" else "this command"
        expected = (
            f"{subject} needs granian; install it with: pip install 'anaphora[proxy]'"
            " (with uvx: uvx --from 'anaphora[proxy]' anaphora …)"
        )
        assert (done.returncode, done.stderr) == (7, f"Error: {expected}\n")


@pytest.mark.long
def test_suggested_commands_work_from_a_wheel(
    installed: Callable[[str], Run], tmp_path: Path
) -> None:
    """The tour of the demo, and every command that it prints at its end, in an empty folder."""
    run = installed("emulator")
    shown = passed(run("-m", "anaphora", "demo"))
    assert "The bill for 20 turns" in shown
    commands = re.findall(r"^   anaphora (.*?)(?:  .*)?$", shown.partition("Try next")[2], re.M)
    assert len(commands) == 4
    lines = [shlex.split(command) for command in commands]
    assert [line[0] for line in lines] == ["usage", "watch", "ask", "emulate"]
    usage, watch, ask, emulate = lines
    write_home(tmp_path)
    used, asked, played = run.commands(usage, ask, ["demo", "--json"])
    assert passed(used).startswith("$0.2984 at API prices")
    assert passed(asked).strip()
    report = json.loads(passed(played))
    assert [one["dialect"] for one in report["providers"]] == ["anthropic/anthropic"]
    (tmp_path / "app.py").write_text("print('app.py ran')")
    words = [sys.executable if word == "python" else word for word in watch]
    assert "app.py ran" in passed(run("-m", "anaphora", *words))
    with subprocess.Popen(
        run.words("-m", "anaphora", *emulate, "--port", "0"),
        env=run.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        (url,) = re.findall(r"http://\S+:\d+", server.stdout.readline())[:1]
        with urllib.request.urlopen(f"{url}/_emulator") as page:
            assert page.status == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) in (0, 130)


def test_emulator_without_its_extra_names_the_command(installed: Callable[[str], Run]) -> None:
    caught = """
import anaphora.emulator.server
try:
    with anaphora.emulator.running(): pass
except anaphora.errors.AnaphoraError as problem:
    print(problem.extra, problem)
try:
    anaphora.emulator.server.serve()
except anaphora.errors.AnaphoraError as problem:
    print(problem.extra, problem)
"""
    expected = 'granian is not installed; install it with: pip install "anaphora[emulator]"'
    assert passed(installed("")("-c", caught)).splitlines() == [f"emulator {expected}"] * 2
