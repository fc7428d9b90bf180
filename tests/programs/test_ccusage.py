"""The bills of real session files against ccusage's: the same tokens and the same dollars, but for
differences that are named here."""

from __future__ import annotations

import datetime
import gzip
import json
import subprocess
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from support.ccusage import Ccusage
from support.missing import skip_without
from support.servers import ServerMissing
from support.session_bills import SHARED, calls_once
from support.waiting import PATIENCE

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName
from anaphora.catalog.pricing import PriceBook
from anaphora.usage import records
from anaphora.usage.places import session_files
from anaphora.usage.records import CallBill, usage_of

#: ccusage prices it as gpt-5.3-codex. OpenAI has no price for it: it is a preview of ChatGPT.
PREVIEW = "gpt-5.3-codex-spark"
LIKE_CODEX = {"uncached": Decimal("1.75"), "read": Decimal("0.175"), "output": Decimal(14)}
COUNTS = ("uncached", "read", "written", "output")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All real sessions, where the programs keep them."""
    root = tmp_path_factory.mktemp("sessions")
    places = {"claude_code": "claude/projects/-work", "codex": "codex/sessions/2026/07/01"}
    for program, place in places.items():
        if not (SHARED / program).is_dir():
            pytest.skip(f"{SHARED / program} is not there")
        (root / place).mkdir(parents=True)
        for file in (SHARED / program).glob("*.jsonl.gz"):
            name = file.name.removesuffix(".gz")
            rollout = f"rollout-2026-07-01T00-00-00-{name}" if program == "codex" else name
            (root / place / rollout).write_bytes(gzip.decompress(file.read_bytes()))
    return root


@pytest.fixture(scope="module")
def ccusage(folder: Path) -> Ccusage:
    try:
        return Ccusage(folder)
    except ServerMissing as missing:
        skip_without(missing)


def calls_of(program: ProgramName, ccusage: Ccusage) -> list[CallBill]:
    """Each answer once. A resumed session repeats those of the session before."""
    environ, problems = ccusage.environ(), list[Problem]()
    files = session_files((), environ, Path(environ["HOME"]), problems, program)
    calls = calls_once(files, problems)
    assert problems == []
    return calls


def counts(call: CallBill) -> Counter[str]:
    written = call.written_5m + call.written_1h + call.written_30m
    return Counter(uncached=call.uncached, read=call.read, written=written, output=call.output)


def cost(prices: PriceBook, call: CallBill) -> Decimal | None:
    price = prices.price(call.provider, call.model, call.at, service_tier=call.tier)
    return (
        None
        if price is None
        else price.of(usage_of([getattr(call, name) for name in records.COUNTS]))
    )


def theirs(row: dict[str, int]) -> Counter[str]:
    names = ("inputTokens", "cacheReadTokens", "cacheCreationTokens", "outputTokens")
    return Counter({name: row[key] for name, key in zip(COUNTS, names, strict=True)})


def test_claude_code_by_day_and_model(ccusage: Ccusage) -> None:
    """The resumed session is in two files: both count its 538 answers once."""
    calls, prices = calls_of("claude_code", ccusage), PriceBook(0.0)
    ours: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    dollars: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for call in calls:
        assert call.at is not None
        day = datetime.datetime.fromtimestamp(call.at, datetime.UTC).date().isoformat()
        ours[day, call.model] += counts(call)
        dollars[day, call.model] += cost(prices, call) or 0
    rows = {
        (day["date"], row["modelName"]): row
        for day in ccusage.report("claude", "daily")["daily"]
        for row in day["modelBreakdowns"]
    }
    assert {key: theirs(row) for key, row in rows.items()} == ours
    for key, row in rows.items():
        assert float(dollars[key]) == pytest.approx(row["cost"], rel=1e-9), key
    assert len(calls) == 1211
    assert not prices.unpriced


def test_codex_by_session(ccusage: Ccusage) -> None:
    """Counts that are written twice are read once by both."""
    calls, prices = calls_of("codex", ccusage), PriceBook(0.0)
    ours: dict[str, Counter[str]] = defaultdict(Counter)
    dollars: dict[str, Decimal] = defaultdict(Decimal)
    preview = Decimal(0)
    for call in calls:
        ours[call.session] += counts(call)
        known = cost(prices, call)
        if known is None:
            assert call.model == PREVIEW
            one = counts(call)
            rates = LIKE_CODEX.items()
            preview += sum((rate * one[name] for name, rate in rates), Decimal(0)) / 1_000_000
        dollars[call.session] += known or 0
    found = ccusage.report("codex", "session")
    rows = {row["sessionId"][-36:]: row for row in found["sessions"]}
    assert {id: theirs(row) for id, row in rows.items()} == ours
    assert prices.unpriced == (f"openai/{PREVIEW}",)
    for id, row in rows.items():
        if PREVIEW not in row["models"]:
            assert float(dollars[id]) == pytest.approx(row["costUSD"], rel=1e-9), id
    total = float(sum(dollars.values()) + preview)
    assert total == pytest.approx(found["totals"]["costUSD"], rel=1e-9)
    assert preview


@pytest.mark.long
def test_the_command_prints_the_same_totals(ccusage: Ccusage) -> None:
    """`anaphora usage`, in the places that ccusage reads."""
    words = ("usage", "program", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "anaphora", *words],
        env={**ccusage.environ(), "TZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows.keys() == {"claude_code", "codex"}
    claude = ccusage.report("claude", "daily")["totals"]
    codex = ccusage.report("codex", "session")["totals"]
    for ours, total in ((rows["claude_code"], claude), (rows["codex"], codex)):
        written = ours["written_5m"] + ours["written_1h"]
        tokens = ours["uncached"], ours["read"], written, ours["output"]
        assert tokens == tuple(theirs(total)[name] for name in COUNTS)
    assert float(rows["claude_code"]["usd"]) == pytest.approx(claude["totalCost"], rel=1e-9)
    assert rows["claude_code"]["unpriced"] == 0
    # The calls of the preview, which ccusage prices.
    assert rows["codex"]["unpriced"] == 9
    assert 0 < codex["costUSD"] - float(rows["codex"]["usd"]) < 0.11
