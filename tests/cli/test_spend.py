"""`anaphora spend` and `anaphora store`, beside a daemon that uses the store and without one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.event_loops import in_event_loop
from support.ledgers import DAY, NOON, Clock, an_app, make_store, opened

from anaphora.daemon.access.grants import NANO
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import Settled
from anaphora.daemon.store.schema import SCHEMA_VERSION as VERSION
from anaphora.values import Usage

#: Noon of 2026-01-15.
PAST = NOON - 365 * DAY


async def spend(ledger: Ledger, app: str, model: str, billed: int, **labels: int) -> None:
    hold = await ledger.hold(an_app(app), provider="p", model=model, request_id="r", bound=billed)
    kind: Settled = "estimated" if model == "aborted" else "billed"
    usage = Usage(uncached=1000, read=9000, output=200)
    await hold.settle(billed, kind, usage=usage, labels=labels, saved=NANO // 4)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three days of spend, and an open hold."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    (home / "llm.yaml").write_text("providers: {}\n")

    @in_event_loop
    async def fill() -> None:
        async with opened(home / "store.sqlite", clock := Clock(PAST)) as ledger:
            await spend(ledger, "shop", "haiku", 2 * NANO, rules=NANO, history=NANO // 2)
            clock.now += DAY
            await spend(ledger, "shop", "sonnet", 3 * NANO, rules=NANO)
            await spend(ledger, "blog", "aborted", NANO // 100)
            clock.now += DAY
            await spend(ledger, "blog", "haiku", NANO)
            hold = await ledger.hold(
                an_app("blog"), provider="p", model="haiku", request_id="r", bound=NANO // 2
            )
            hold._settled = True  # stays open

    fill()
    return home


def test_spend_by_app_and_model(run: Any, home: Path) -> None:
    done = run("spend", "--home", str(home))
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert lines == [
        ["app", "model", "calls", "input", "read", "output", "spent", "estimated", "saved"],
        ["blog", "aborted", "1", "10,000", "90%", "200", "$0.0100", "$0.0100", "$0.2500"],
        ["blog", "haiku", "1", "10,000", "90%", "200", "$1.00", "$0.2500"],
        ["shop", "haiku", "1", "10,000", "90%", "200", "$2.00", "$0.2500"],
        ["shop", "sonnet", "1", "10,000", "90%", "200", "$3.00", "$0.2500"],
        "$6.01, 4 calls; $0.5000 held for calls that are running".split(),
    ]


@pytest.mark.parametrize(
    "options, rows",
    [
        (["--by", "app"], {"blog": 1.01, "shop": 5}),
        (["--by", "day"], {"2026-01-15": 2, "2026-01-16": 3.01, "2026-01-17": 1}),
        (["--by", "label"], {"": 3.51, "history": 0.5, "rules": 2}),
        (["--by", "label", "--app", "blog"], {"": 1.01}),
        (["--by", "model", "--since", "2026-01-17"], {"haiku": 1}),
        (["--by", "app", "--until", "2026-01-15"], {"shop": 2}),
        (["--by", "app", "--since", "2030-01-01"], {}),
    ],
    ids=" ".join,
)
def test_json_has_whole_nano_dollars(
    run: Any, home: Path, options: list[str], rows: dict[str, float]
) -> None:
    value = json.loads(run("spend", "--home", str(home), "--json", *options).stdout)
    found = {row[options[1]]: row["billed_nano_usd"] for row in value["rows"]}
    assert found == {name: round(dollars * NANO) for name, dollars in rows.items()}
    assert value["total"]["billed_nano_usd"] == sum(found.values())
    assert value["held_nano_usd"] == NANO // 2


def test_html_has_the_sums_and_is_private(run: Any, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "spend.html"
    file.write_text("an earlier report")
    done = run("spend", "--by", "label", "--html", str(file), "--home", str(home))
    assert (done.returncode, done.stdout) == (0, "")
    assert str(file) in done.stderr.replace("\n", "")
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["spend.html"]
    report = file.read_text()
    assert "<script" not in report
    assert not [text for text in ("Lost", "Failed", "0 failed") if text in report], (
        "the ledger has neither"
    )
    for text in ("$6.01", "By label", "By day", "rules", "2026-01-15", "$0.50"):
        assert text in report
    assert run("spend", "--html", "-", "--home", str(home)).stdout.startswith("<!doctype html>")


def test_html_is_one_report(run: Any, home: Path) -> None:
    done = run("spend", "--html", "-", "--json", "--home", str(home))
    assert done.returncode == 2
    assert "--json" in done.stderr


def test_unknown_fields_and_days_are_named(run: Any, home: Path) -> None:
    wrong = run("spend", "--home", str(home), "--by", "app,modle")
    assert (wrong.returncode, "'modle' is none of group, app, provider, model" in wrong.stderr) == (
        2,
        True,
    )
    wrong = run("spend", "--home", str(home), "--since", "yesterday")
    assert (wrong.returncode, "neither a date" in wrong.stderr) == (2, True)


def test_a_home_without_a_store_has_spent_nothing(run: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "llm.yaml").write_text("providers: {}\n")
    done = run("spend", "--home", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "nothing was spent\n\n$0, 0 calls\n")
    assert not (tmp_path / "store.sqlite").exists()
    assert "no such store" in run("store", "check", "--home", str(tmp_path)).stderr


# ── anaphora store ───────────────────────────────────────────────────────────────────────────────


def test_store_is_checked(run: Any, home: Path) -> None:
    done = run("store", "check", "--home", str(home), "--json")
    value = json.loads(done.stdout)
    assert (done.returncode, value["ok"], value["problems"]) == (0, True, [])
    assert (value["entries"], value["open_holds"]) == (4, 1)


def test_pruned_entries_stay_in_what_was_spent(run: Any, home: Path, tmp_path: Path) -> None:
    copied = tmp_path / "home"
    shutil.copytree(home, copied)
    before = run("spend", "--since", "2026-01-01", "--home", str(copied)).stdout
    done = run("store", "prune", "--keep-days", "90", "--home", str(copied))
    assert (done.returncode, "4 entries before 20" in done.stdout) == (0, True), done.stderr
    assert run("spend", "--since", "2026-01-01", "--home", str(copied)).stdout == before
    checked = run("store", "check", "--home", str(copied))
    assert checked.returncode == 0
    assert "0 entries" in checked.stdout
    assert "were pruned" in checked.stdout
    done = run("store", "prune", "--keep-days", "90", "--home", str(copied), "--json")
    assert json.loads(done.stdout)["entries"] == 0
    assert run("store", "prune", "--home", str(copied)).returncode == 2
    for days in ("nan", "-1", "40000"):
        refused = run("store", "prune", "--keep-days", days, "--home", str(copied))
        assert (refused.returncode, "'--keep-days'" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_store_of_another_version_has_its_exit_code(
    run: Any, tmp_path: Path, version: int
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "llm.yaml").write_text("providers: {local: {wire: openai_chat}}\n")
    (tmp_path / "extensions.yaml").write_text("{}\n")
    make_store(tmp_path / "store.sqlite", version)
    backup = ["backup", str(tmp_path / "../backup")]
    for words in (["spend"], ["store", "check"], backup, ["serve"]):
        done = run(*words, "--home", str(tmp_path))
        assert done.returncode == 4, (words, done.stderr)
        assert f"schema_version {version}" in done.stderr
