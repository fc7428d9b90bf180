"""Variables that two recordings of a program show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tables import each_row

from anaphora.replay import FixtureStore, Player
from anaphora.replay.comparison import as_toml, rules_between
from anaphora.replay.folder_variables import compare, variables_of
from anaphora.replay.keys import ReplayRequest
from anaphora.replay.recording import Recording
from anaphora.replay.rules import MatchRules, ReplaySettings


@each_row(
    "one, two, expected",
    [
        ("Session: 81f3-22, ready", "Session: 90aa-07, ready", "Session: {{session}}, ready"),
        ("a\nBuild number 17\nb", "a\nBuild number 18\nb",
                            "a\nBuild number {{build_number}}\nb"),
        ("Root: `/a b/c`.", "Root: `/d`.", "Root: `{{root}}`."),
        ("Host h1 port 80.", "Host h2 port 81.",
                          "Host {{host}} port {{port}}"),
        ('Say "x-1" \\ now', 'Say "x-2" \\ now', 'Say "{{say}}" \\ now'),
    ],
)  # fmt: skip
def test_rule_makes_two_texts_equal(one: str, two: str, expected: str) -> None:
    rules = ReplaySettings.decode(as_toml(rules_between([(one, two)]))).rule
    found = MatchRules(rules, shipped=False)
    assert [found.apply(text)[0] for text in (one, two)] == [expected, expected]


@each_row(
    "one, two",
    [
        ("17 files", "18 files"),
        ("a\nb", "a\nb\nc"),
        ("same", "same"),
    ],
)
def test_no_rule(one: str, two: str) -> None:
    assert rules_between([(one, two)]) == []


def test_value_after_a_known_variable_is_part_of_it() -> None:
    (rule,) = rules_between([("Use `{{tmp}}/a1/x` now", "Use `{{tmp}}/b2/x` now")])
    assert MatchRules([rule], shipped=False).apply("Use `/tmp/c/x` now")[0] == "Use `{{use}}` now"


def record(folder: Path, cwd: str, run: str, reply: str) -> None:
    player = Player(folder, "all", variables={"cwd": cwd})
    first: dict[str, Any] = {"role": "user", "content": f"You are in {cwd}.\nRun id: {run}\nGo."}
    said = {"role": "assistant", "content": reply}
    for messages in ([first], [first, said, {"role": "user", "content": f"got {reply}"}]):
        data = json.dumps({"model": "m", "max_tokens": 9, "messages": messages}).encode()
        request = ReplayRequest(method="POST", path="/v1/messages", body=data)
        recording = player.look_up(request)
        assert isinstance(recording, Recording)
        recording.add(reply.encode())
        recording.finish(200)
    player.close()


@pytest.fixture
def stores(tmp_path: Path) -> tuple[FixtureStore, FixtureStore]:
    record(tmp_path / "one", "/work/a", "r-1001", "An answer")
    record(tmp_path / "two", "/srv/b", "r-2002", "Another answer")
    return FixtureStore.open(tmp_path / "one"), FixtureStore.open(tmp_path / "two")


def test_recordings_are_compared_up_to_the_first_answer(
    stores: tuple[FixtureStore, FixtureStore],
) -> None:
    found = compare(*stores)
    assert (found.compared, found.equal, found.left) == (2, 0, ())
    assert [(one.name, one.recorded, one.now) for one in found.variables] == [
        ("{{cwd}}", "/work/a", "/srv/b")
    ]
    (rule,) = found.rules
    assert rule.placeholder == "{{run_id}}"


def test_variables_of_a_folder(stores: tuple[FixtureStore, FixtureStore]) -> None:
    assert variables_of(stores[0])["{{cwd}}", "/work/a"] == 2
