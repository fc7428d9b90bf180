"""Match rules: what differs from run to run is replaced, within a bounded time."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import InvalidConfig, Io
from anaphora.replay.keys import ReplayRequest, key_of
from anaphora.replay.patterns import LONGEST, bounded_pattern
from anaphora.replay.rules import (
    MatchRule,
    MatchRules,
    ReplaySettings,
    settings_of,
    shipped_rules,
)

#: What the three programs wrote in two runs: on another day, in another directory.
CLAUDE_CODE = (
    textwrap.dedent("""\
        # Environment
         - Primary working directory: {directory}
         - Is a git repository: true
         - Platform: {platform}
         - OS Version: {system}
        """),
    "x-anthropic-billing-header: cc_version=2.1.325.{suffix}; cc_entrypoint=sdk-cli;",
    "# gitStatus\n\nCurrent branch: {branch}\n\nMain branch (you will usually use this for PRs):"
    " main\n\nGit user: {user}\n\nStatus:\n?? {file}\n M b.txt\n\nRecent commits:\n{commit} First"
    "\n\nClaude Code attached this context automatically.",
    "<system-reminder>\nToday's date is {date}.\n</system-reminder>",
    "a file-based memory system at `{home}/.claude/projects/x/memory/`. Use {home}/.claude/projects/x/memory/",
    "read {directory}/src/main.py",
    "<total_tokens>{number} tokens left</total_tokens>",
)
CODEX = (
    "<environment_context>\n  <cwd>{directory}</cwd>\n  <shell>bash</shell>\n"
    "  <current_date>{date}</current_date>\n  <timezone>{zone}</timezone>\n"
    "  <root>{directory}</root>\n</environment_context>",
    "- `r0` = `{home}/skills/.system`",
    "msg_{uuid}",
    "Chunk ID: {chunk}\nWall time: {number}.12 seconds\nProcess exited with code 0\n",
)
GEMINI_CLI = (
    "This is the Gemini CLI.\nToday's date is {day} (formatted according to the user's locale).\n"
    "My operating system is: {platform}\nThe project's temporary directory is: {home}/.gemini/tmp/x\n"
    "- **Workspace Directories:**\n  - {directory}\n\n{directory}/\n├───a.txt\n",
    "**Private Project Memory** (`{home}/.gemini/tmp/x/memory/MEMORY.md`)",
    "Output: 1\nProcess Group PGID: {number}\n",
)
RUNS: list[dict[str, str]] = [
    {
        "directory": "/home/ada/project", "home": "/home/ada", "platform": "linux",
        "system": "Linux 6.18.44", "suffix": "520", "branch": "main", "user": "ada",
        "file": "a.txt", "commit": "657e61b", "date": "2026-11-16", "number": "14973058",
        "zone": "Etc/UTC", "uuid": "01a1e34b-5e01-7352-acc7-7b1268b22df0", "chunk": "558abe",
        "day": "Monday, November 16, 2026",
    },
    {
        "directory": "/Users/bob/elsewhere/deep-er", "home": "/Users/bob", "platform": "darwin",
        "system": "Darwin 25.4.0", "suffix": "9af", "branch": "fix/cache", "user": "Bob",
        "file": "src/new.py", "commit": "50c526c", "date": "2027-01-03", "number": "7",
        "zone": "Europe/Zurich", "uuid": "9a669483-30ab-4b2c-adc6-e437cb0bd91b", "chunk": "9f30bf",
        "day": "Sunday, January 3, 2027",
    },
]  # fmt: skip


def body(texts: tuple[str, ...], run: dict[str, str]) -> dict[str, Any]:
    parts = [{"type": "text", "text": text.format(**run)} for text in texts]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def key(value: dict[str, Any], rules: MatchRules) -> str:
    data = json.dumps(value).encode()
    return key_of(ReplayRequest(method="POST", path="/v1/messages", body=data), rules).key


@pytest.mark.parametrize(
    "texts", [CLAUDE_CODE, CODEX, GEMINI_CLI], ids=["claude", "codex", "gemini"]
)
def test_shipped_rules_cover_another_day_and_directory(texts: tuple[str, ...]) -> None:
    one, two = (body(texts, run) for run in RUNS)
    assert key(one, MatchRules()) == key(two, MatchRules())
    assert key(one, MatchRules(shipped=False)) != key(two, MatchRules(shipped=False))
    for index in range(len(texts)):  # each of them is needed, and hides nothing beside it
        other = body(texts, RUNS[1])
        other["messages"][0]["content"][index]["text"] += "!\n"
        assert key(other, MatchRules()) != key(two, MatchRules())


def test_every_shipped_rule_names_its_program() -> None:
    for rule in shipped_rules():
        assert rule.program
        assert re.fullmatch(r"\.?<[a-z ]+>", rule.placeholder)


def test_value_is_replaced_everywhere() -> None:
    rules = MatchRules(
        [MatchRule(pattern="run in (?P<value>[^ ]+)", placeholder="<dir>", everywhere=True)],
        shipped=False,
    )
    value, found = rules.apply({"a": "run in /x/y now", "b": ["see /x/y/z", 7, None]})
    assert value == {"a": "run in <dir> now", "b": ["see <dir>/z", 7, None]}
    assert found == {"/x/y": "<dir>"}
    assert rules.apply(["see /x/y"], found)[0] == ["see <dir>"]


def test_short_value_is_replaced_in_place_only() -> None:
    rules = MatchRules(
        [MatchRule(pattern="run in (?P<value>[^ ]+)", placeholder="<dir>", everywhere=True)],
        shipped=False,
    )
    assert rules.apply(["run in / now", "/etc"]) == (["run in <dir> now", "/etc"], {})


def test_only_the_first_values_are_replaced_everywhere() -> None:
    """A prompt full of directories takes no longer than any other of its length."""
    lines = [f"Working directory: /work/{number:05}" for number in range(20_000)]
    value, found = MatchRules().apply(["\n".join(lines), "/work/00000 and /work/19999"])
    assert list(found) == [f"/work/{number:05}" for number in range(16)]
    assert value[1] == "<directory> and /work/19999"
    assert value[0].count("<directory>") == len(lines)


def test_whole_match_is_replaced_without_a_group() -> None:
    rules = MatchRules([MatchRule(pattern="T-[0-9]+", placeholder="<ticket>")], shipped=False)
    assert rules.apply("T-1 and T-22") == ("<ticket> and <ticket>", {})


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def test_rules_of_the_folder_and_of_a_file_apply(tmp_path: Path) -> None:
    (tmp_path / "replay.toml").write_text('[[rule]]\npattern = "T-[0-9]+"\nplaceholder = "<t>"\n')
    extra = tmp_path / "more.toml"
    extra.write_text('shipped_rules = false\n[[redact]]\npattern = "acme-[a-z]{8}"\n')
    read = settings_of(tmp_path, (tmp_path / "replay.toml").read_bytes(), extra)
    assert [rule.placeholder for rule in read.rule] == ["<t>"]
    assert [row.pattern for row in read.redact] == ["acme-[a-z]{8}"]
    assert not read.shipped_rules
    assert settings_of(tmp_path / "none", None).shipped_rules


@each_row(
    ("text", "reason"),
    [
        ("[[rule]", "not TOML"),
        ("[[rules]]", "unknown field `rules`"),
        ("[[rule]]\npattern = 'x'", "missing required field `placeholder`"),
        ("[[rule]]\npattern = '['\nplaceholder = ''", r"rule\[0\].pattern '\[': not a regular"),
        ("[[rule]]\npattern = 'x*'\nplaceholder = ''", "matches the empty text"),
        ("[[rule]]\npattern = '(a+)+b'\nplaceholder = ''", "more than 1,000,000 steps"),
        ("[[redact]]\npattern = '('", r"redact\[0\].pattern"),
    ],
)
def test_wrong_file_is_named_with_its_place(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"mine.toml.*{reason}"):
        ReplaySettings.decode(text, "mine.toml")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Io, match=r"missing\.toml: No such file"):
        settings_of(tmp_path, None, tmp_path / "missing.toml")


# ── Bounded patterns ─────────────────────────────────────────────────────────────────────────────


@each_row(
    "pattern",
    [
        "(a+)+b", "(a|a)*b", "(a|aa)+b", "(?:a?){30}a{30}", ".*.*x", "(x+x+)+y", r"(\w+\s?)*!",
        "(.*)(.*)(.*)x", "([a-z]+,?)+!", "(?=(a+)+b)c", "(?:a{0,9}){0,99}b", "((a*)*)*b",
        r"(a)\1", "(?i:(?:ab|AB))+c", "[^x]+[^y]+z{2}.+q",
    ],
)  # fmt: skip
def test_pattern_that_may_take_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"steps for each character|not supported"):
        bounded_pattern(pattern)


@each_row(
    ("pattern", "text", "found"),
    [
        (r"(?:/[\w.-]+)+", "see /a/b.c/d now", "/a/b.c/d"),
        (r"\d{4}-\d\d-\d\d", "on 2026-11-16.", "2026-11-16"),
        (r"(?s)<env>.*?</env>", "<env>\n1\n</env></env>", "<env>\n1\n</env>"),
        (r"(?i)session ([A-F\d]+)", "Session 9af", "Session 9af"),
        (r"(?:Mon|Tues|Wednes)day, [A-Z][a-z]+ \d{1,2}", "Tuesday, March 3", "Tuesday, March 3"),
        (r"é+[^a]b", "ééxb", "ééxb"),
        (r"(?<=id )\w+(?! not)\b", "id abc", "abc"),
    ],
)
def test_pattern_finds_what_it_should(pattern: str, text: str, found: str) -> None:
    match = bounded_pattern(pattern).search(text)
    assert match is not None
    assert match[0] == found


def test_open_repeat_is_limited() -> None:
    match = bounded_pattern("a+").match("a" * 9999)
    assert match is not None
    assert len(match[0]) == LONGEST + 1


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", r"\w", ".", "ab", "[^a]"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2,9}", "+?", "{3}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(PATTERNS)
def test_accepted_pattern_matches_within_its_bound(pattern: str) -> None:
    """A pattern with exponential cost would not come back from these texts."""
    try:
        compiled = bounded_pattern(pattern)
    except ValueError:
        return
    for text in ("a" * 60 + "!", "ab" * 40 + "!", "b" * 60):
        compiled.sub("x", text)
