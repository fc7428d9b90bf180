"""Every snippet and every command in the documentation works as written."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from packaging.requirements import Requirement
from support.feature_calls import PDF, PNG
from support.tables import each_row
from support.usage_home import write_example_home, write_home

import anaphora_statusline
from anaphora import catalog, emulator, errors, wire
from anaphora.cli.main import main
from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import check
from anaphora.daemon.store.schema import SCHEMA_VERSION
from anaphora.postgres.schema import SCHEMA_VERSION as SCHEMA_VERSION_POSTGRES
from anaphora.usage.report import CauseRow, ExpensiveLoss, UnpricedModel, UsageReport, UsageRow

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: What runs this very suite, installs, runs for minutes, or only calls a command that runs here too
#: is checked for existence only.
NOT_FROM_HERE = {
    f"make {name}"
    for name in (
        "bench bench-peers cachebench check cluster demo docs integrations pins release setup soak test"
    ).split()
}


def fenced(page: Path, language: str) -> list[str]:
    return [body for tag, body in FENCE.findall(page.read_text()) if tag == language]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def emu() -> Iterator[emulator.Emulator]:
    with emulator.running() as running:
        yield running


def export(page: Path, emu: emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the variables that send a page's calls to the emulator."""
    for text in fenced(page, "text"):
        if text.startswith("export") and "http://127.0.0.1:8787" in text:
            for variable, value in re.findall(r"(\w+)=(\S+)", text):
                monkeypatch.setenv(variable, value.replace("http://127.0.0.1:8787", emu.url))


@pytest.fixture
def reader(emu: emulator.Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A reader's machine: keys in the environment, and the files that the guides name. The calls go
    to the emulator, as docs/guides/README.md says."""
    export(ROOT / "docs" / "guides" / "README.md", emu, monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "receipt.png").write_bytes(PNG.data)
    (tmp_path / "contract.pdf").write_bytes(PDF.data)


def test_the_readme_runs_and_prints_its_output(
    reader: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the figures: those follow the catalog."""
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    printed = []
    for tag, body in FENCE.findall((ROOT / "README.md").read_text()):
        if tag == "python":
            exec(compile(body, "README.md", "exec"), module.__dict__)
            printed.append(capsys.readouterr().out)
        elif body.startswith("$ anaphora watch"):
            _, output, *_ = fenced(ROOT / "docs" / "guides" / "watch.md", "text")
            assert output.startswith(body.partition("\n")[2])
        elif body == "anaphora watch -- claude\n":
            assert body in (ROOT / "docs" / "guides" / "watch.md").read_text()
        elif body.startswith("$ uvx"):
            pass  # below
        elif tag == "text":
            assert without_figures(printed[-1]) == without_figures(body)
    assert len(printed) == 1


def test_the_readme_is_short_and_loads_nothing() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    assert re.findall(r"!\[|https?://", text) == [], "no remote badge, image or link"
    images = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert images == [f"docs/images/conversation-{each}.svg" for each in ("dark", "light")]
    assert re.search(r'<img [^>]*\balt="[^"]{40,}"', text)
    assert re.search(r"<!-- figures: results -->\n.+\n<!-- /figures -->", text, re.DOTALL)


def test_the_figures_of_the_readme_follow_the_catalog() -> None:
    page = (ROOT / "README.md").read_text()
    (discount,) = re.findall(r"by up to (\d+)%", page)
    rules = [catalog.rules(each.provider, each.id) for each in catalog.models()]
    multiples = [each.read_price.value for each in rules if each.read_price.verified]
    assert int(discount) == round(100 * (1 - min(filter(None, multiples))))
    (others,) = re.findall(r"for (\d+) more providers", page)
    makers = {"anthropic", "openai", "google"}
    assert int(others) == len({row.provider for row in catalog.dialects().rows} - makers)


def test_the_changelog_names_the_newest_schema_of_the_store() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    version = re.findall(r"schema_version (\d+) \(SQLite and PostgreSQL\)", text)[0]
    assert int(version) == SCHEMA_VERSION == SCHEMA_VERSION_POSTGRES


def without_figures(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d[\d,.]*", "0", text))


#: Pages whose snippets have a test of their own: tests/pytest_plugin/test_guide.py,
#: tests/daemon/test_reference_pages.py, tests/daemon/test_guides.py, and below.
FILES = {
    "budgets.md",
    "extensions.md",
    "from-litellm-proxy.md",
    "grants.md",
    "run-a-daemon.md",
    "test-your-cache.md",
    "watch.md",
}


@pytest.mark.parametrize(
    "page", [p for p in sorted(ROOT.glob("docs/guides/*.md")) if p.name not in FILES], ids=name
)
@pytest.mark.long
def test_every_guide_runs_as_one_program(
    page: Path, reader: None, emu: emulator.Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(page, emu, monkeypatch)
    # FastAPI looks for the names in annotations in the module of a function.
    module = ModuleType("guide_" + page.stem.replace("-", "_"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for program in fenced(page, "python"):
        exec(compile(program, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=pytest.mark.soak)], ids=["breaks", "fixed"]
)
def test_the_guide_to_watch_prints_its_output(
    emu: emulator.Emulator, reader: None, tmp_path: Path, number: int
) -> None:
    """All but the figures. The second program is the first one with another `converse`."""
    page = ROOT / "docs" / "guides" / "watch.md"
    first, rest = fenced(page, "python")
    second = first.partition("def converse")[0] + rest
    command, *outputs = fenced(page, "text")
    words = shlex.split(command)
    assert words[:3] == ["anaphora", "watch", "--"]
    emu.reset()
    (tmp_path / "agent.py").write_text((first, second)[number])
    run = subprocess.run(
        [sys.executable, "-m", *words[:3], sys.executable, *words[4:]],
        env={name: os.environ[name] for name in os.environ if name != "COLUMNS"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert without_figures(run.stderr) == without_figures(outputs[number])


def test_a_provider_is_added_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "adding-a-provider.md"
    dialect, models = fenced(page, "toml")
    (program,) = fenced(page, "python")
    exec(
        compile(program, str(page), "exec"),
        {"__name__": "docs", "DIALECT": dialect, "MODELS": models},
    )
    encoded, notices = capsys.readouterr().out.splitlines()
    path, conversation, body = encoded.split(" ", 2)
    assert (path, conversation) == ("/llm/v2/chat/completions", "talk-1")
    assert json.loads(body) == {
        "model": "acme-large",
        "messages": [{"role": "user", "content": "Hello?"}],
        "max_tokens": 64,
        "random_seed": 7,
        "thinking": {"type": "auto"},
    }
    assert "params.user" in notices

    rows = catalog.shipped().with_rows(models)
    assert rows.rules("acme", "acme-large").read_price.value == 0.25
    assert not rows.rules("acme", "acme-large").slots.verified
    acme = wire.codec_for(catalog.dialects().with_rows(dialect).find("acme"))
    message = {"role": "assistant", "content": "Hello."}
    answer = {
        "id": "a",
        "model": "acme-large",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "cache": {"hits": 4}},
        "status": {"code": 0},
    }
    reply = acme.read_reply(json.dumps(answer).encode())
    assert (reply.text, reply.usage.uncached, reply.usage.read) == ("Hello.", 5, 4)
    with pytest.raises(errors.QuotaExhausted, match="no credit"):
        acme.read_reply(b'{"status":{"code":23,"text":"no credit"}}')


#: Pages whose snippets have a test of their own.
SHOWN = {
    "README.md",
    "adding-a-provider.md",
    "aws-sdks.md",
    "clouds.md",
    "dspy.md",
    "frameworks.md",
    "how-caches-break.md",
    "index.md",
    "inspect-ai.md",
    "langchain.md",
    "observe.md",
    "pydantic-ai.md",
    "tutorial.md",
}
#: Pages that show a changed tool, and a history that a summary replaces.
BREAKING = {
    "client.md": "the page changes a tool on purpose",
    "summarize.md": "a summary replaces the beginning of the history",
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.breaks_prefix(reason=BREAKING[p.name]))
        if p.name in BREAKING
        else p
        for p in PAGES
        if p.name not in SHOWN and p.parent.name not in ("guides", "reference")
    ],
    ids=name,
)
@pytest.mark.long
def test_other_pages_hold_no_untested_snippet(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for program in fenced(page, "python"):
        exec(compile(program, str(page), "exec"), {"__name__": "docs"})


def test_every_fence_names_its_language() -> None:
    known = {"javascript", "python", "sh", "toml", "yaml", "text"}
    for page in PAGES:
        assert {tag for tag, _ in FENCE.findall(page.read_text())} <= known, name(page)


@each_row("page", [p for p in PAGES if fenced(p, "yaml") and p.name not in FILES], ids=name)
def test_every_yaml_is_an_llm_yaml_that_is_right(page: Path) -> None:
    for text in fenced(page, "yaml"):
        if "capabilities_grant:" in text:
            continue  # grants: tests/daemon/test_guides.py
        assert check(ClientConfig.from_text(text, name(page)))


def use_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Another user's home, in UTC."""
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_the_page_about_bills_prints_its_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All but the figures: those follow the catalog."""
    use_home(monkeypatch, write_example_home(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["usage"]) == 0
    _, page, line, setting = fenced(ROOT / "docs" / "why-is-my-bill-high.md", "text")
    assert without_figures(capfd.readouterr().out) == without_figures(page)
    (shown,) = (body for body in fenced(ROOT / "README.md", "text") if body.startswith("$ uvx"))
    assert [text for text in shown.splitlines()[1:] if text not in ("…", *page.splitlines())] == []
    settings = json.loads("{" + setting + "}")
    assert settings["statusLine"]["command"] in project_scripts()
    now = time.time()
    usage = {"cache_read_input_tokens": 98, "input_tokens": 2}
    given = {
        "model": {"display_name": "Opus 5.5"},
        "cost": {"total_cost_usd": 3.21},
        "context_window": {"used_percentage": 42, "current_usage": usage},
        "prompt_cache": {"expires_at": now + 299},
    }
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(given).encode())))
    assert anaphora_statusline.main() == 0
    assert without_figures(capfd.readouterr().out.replace("~", "")) == without_figures(line)


def test_the_fields_of_the_json_are_documented() -> None:
    text = (ROOT / "docs" / "why-is-my-bill-high.md").read_text()
    for kind in (UsageReport, UsageRow, CauseRow, ExpensiveLoss, UnpricedModel):
        for field in msgspec.structs.fields(kind):
            assert f"`{field.encode_name}`" in text, field.encode_name


def project_scripts() -> dict[str, str]:
    scripts: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "scripts"
    ]
    return scripts


@pytest.mark.parametrize(
    "command",
    sorted({line for page in PAGES for body in fenced(page, "sh") for line in body.splitlines()}),
)
@pytest.mark.long
def test_every_command_works(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    if "usage" in command:
        use_home(monkeypatch, write_home(tmp_path))
    words = shlex.split(command)
    if words[:2] == ["pip", "install"]:
        wanted = Requirement(words[2].replace(".[", "anaphora["))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert wanted.name == project["name"]
        assert wanted.extras <= set(project["optional-dependencies"])
        return
    if command in NOT_FROM_HERE:
        words = ["make", "--dry-run", words[1]]
    elif words[0] == "python":
        words[0] = sys.executable
    elif words == ["anaphora", "demo"]:  # its conversations break their prefixes
        words = [sys.executable, "-m", *words]
    elif words[0] == "anaphora":
        monkeypatch.chdir(ROOT)
        assert main(words[1:]) == 0, capfd.readouterr().err
        return
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.soak
def test_the_whole_demo_runs() -> None:
    demo = [sys.executable, "-m", "anaphora", "demo"]
    run = subprocess.run(demo, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_benchmark_named_in_the_docs_runs_and_ends_with_its_ratios() -> None:
    bench = [sys.executable, "bench/render.py", "--turns", "30", "--rounds", "1"]
    run = subprocess.run(bench, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r'\{"warm_vs_json_dumps": [\d.]+, "growth_20_to_2000": [\d.]+,'
        r' "cold_vs_dumps_and_hash": [\d.]+\}',
        run.stdout.splitlines()[-1],
    )


def test_links_inside_the_repository_lead_somewhere() -> None:
    links = [
        (page, *link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]*)(#[^)]+)?\)", page.read_text())
    ]
    assert len(links) > 100
    for page, target, anchor in links:
        file = page.parent / target if target else page
        assert file.exists(), f"{name(page)}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor[1:] in slugs, f"{name(page)}: {target}{anchor}"


def test_the_architecture_page_names_real_files_and_a_short_reading_list() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = text.split("## Read it in one sitting")[1].split("\n## ")[0]
    files = [ROOT / "src" / "anaphora" / file for file in re.findall(r"^\| `(.+?)`", listed, re.M)]
    assert len(files) > 8
    assert sum(len(file.read_text().splitlines()) for file in files) <= 3000
    for file in re.findall(r"`((?:\w+/)+\w+\.(?:py|toml))`", text):
        assert (ROOT / "src" / "anaphora" / file).exists() or (ROOT / file).exists(), file
