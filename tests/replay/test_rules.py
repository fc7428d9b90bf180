"""Match rules: what differs from run to run is replaced, within a bounded time."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import InvalidConfig, Io, MissingExtra
from anaphora.replay.keys import ReplayRequest, key_of
from anaphora.replay.rules import (
    MatchRule,
    MatchRules,
    ReplaySettings,
    settings_of,
    shipped_rules,
    user_pattern,
    without_surrogates,
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
QWEN_CODE = (
    "- PROJECT memory (this project only, private to you): `{home}/.qwen/projects/{slug}/memory`\n",
    "## {home}/.qwen/projects/{slug}/memory/MEMORY.md\n\nYour MEMORY.md is currently empty.",
    "Today's date is {day}.\nMy operating system is: {platform}\n"
    "I'm currently working in the directory: {directory}\n",
    "The current date is: {day}. Note: This is the authoritative current date",
)
AIDER = (
    "- Reply in English\n- Current date: {date}\n- The user's pre-commit runs these lint commands",
)
RUNS: list[dict[str, str]] = [
    {
        "directory": "/home/ada/project", "home": "/home/ada", "platform": "linux",
        "system": "Linux 6.18.44", "suffix": "520", "branch": "main", "user": "ada",
        "file": "a.txt", "commit": "657e61b", "date": "2026-11-16", "number": "14973058",
        "zone": "Etc/UTC", "uuid": "01a1e34b-5e01-7352-acc7-7b1268b22df0", "chunk": "558abe",
        "day": "Monday, November 16, 2026", "slug": "-home-ada-project",
    },
    {
        "directory": "/Users/bob/elsewhere/deep-er", "home": "/Users/bob", "platform": "darwin",
        "system": "Darwin 25.4.0", "suffix": "9af", "branch": "fix/cache", "user": "Bob",
        "file": "src/new.py", "commit": "50c526c", "date": "2027-01-03", "number": "7",
        "zone": "Europe/Zurich", "uuid": "9a669483-30ab-4b2c-adc6-e437cb0bd91b", "chunk": "9f30bf",
        "day": "Sunday, January 3, 2027", "slug": "-Users-bob-elsewhere-deep-er",
    },
]  # fmt: skip


def body(texts: tuple[str, ...], run: dict[str, str]) -> dict[str, Any]:
    parts = [{"type": "text", "text": text.format(**run)} for text in texts]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def key(value: dict[str, Any], rules: MatchRules) -> str:
    data = json.dumps(value).encode()
    return key_of(ReplayRequest(method="POST", path="/v1/messages", body=data), rules).key


CONTEXT = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n"
    "{sections}\nClaude Code attached this context automatically.\n</system-reminder>"
)
GIT = (
    "# gitStatus\nThis is the git status at the start of the conversation.\n\nCurrent branch: main"
    "\n\nMain branch (you will usually use this for PRs): main\n\nStatus:\n(clean)\n\n"
    "Recent commits:\n657e61b First\n"
)


@pytest.mark.parametrize("sections", ["", "# claudeMd\nUse tabs.\n"], ids=["alone", "claudeMd"])
def test_a_folder_without_a_repository_has_no_git_status(sections: str) -> None:
    around = ("The first part.", "Count the files.")
    context = (CONTEXT.format(sections=sections),) if sections else ()
    without = body((around[0], *context, around[1]), {})
    with_git = body((around[0], CONTEXT.format(sections=sections + GIT), around[1]), {})
    assert key(with_git, MatchRules()) == key(without, MatchRules())
    assert key(with_git, MatchRules(shipped=False)) != key(without, MatchRules(shipped=False))


def test_empty_parts_of_a_request_stay() -> None:
    assert key(body(("", "b"), {}), MatchRules()) != key(body(("b",), {}), MatchRules())


@pytest.mark.parametrize(
    "texts",
    [CLAUDE_CODE, CODEX, GEMINI_CLI, QWEN_CODE, AIDER],
    ids=["claude", "codex", "gemini", "qwen", "aider"],
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
        assert re.fullmatch(r"(?:\{\{[a-z_]+\}\})?", rule.placeholder)


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
    assert value[1] == "{{cwd}} and /work/19999"
    assert value[0].count("{{cwd}}") == len(lines)


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
        ("[[redact]]\npattern = '('", r"redact\[0\].pattern"),
        (
            "[[rule]]\npattern = 'a'\nplaceholder = ''\n[[redact]]\npattern = 'b'\n\n"
            "[[redact]]\n# ours\npattern = '(?=c)d'",
            r":9: redact\[1\].pattern '\(\?=c\)d': look-around, \(\?=…\), is not supported",
        ),
        (
            "[[rule]]\nplaceholder = ''\npattern = '(a)\\1'",
            r":3: rule\[0\].pattern .*: a reference to a group is not supported",
        ),
        ("redact = [{ pattern = '(?<!c)d' }]", r"redact\[0\].*look-around"),
    ],
)
def test_wrong_file_is_named_with_its_place(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"mine.toml.*{reason}"):
        ReplaySettings.decode(text, "mine.toml")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Io, match=r"missing\.toml: No such file"):
        settings_of(tmp_path, None, tmp_path / "missing.toml")


# ── Patterns of users ────────────────────────────────────────────────────────────────────────────


@each_row(
    ("pattern", "reason"),
    [
        ("a(?=b)", "look-around"), ("a(?!b)", "look-around"), ("(?<=b)a", "look-around"),
        ("(?<!b)a", "look-around"), (r"(a)\1", "reference to a group"),
        ("(?P<n>a)(?P=n)", "reference to a group"), ("(a)?(?(1)b|c)", "reference to a group"),
        ("(", "missing )"), ("a{1,2000}", "repetition"), ("a++b", "repetition"),
        ("(?x) a b", "invalid"), ("a\ud800", "not a regular expression"),
        ("a*", "matches the empty text"),
    ],
)  # fmt: skip
def test_pattern_that_is_not_supported_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace(")", r"\)")):
        user_pattern(pattern)


#: Texts in which each pattern below is searched, by RE2 and by `re`.
SEARCHED = (
    "see /a/b.c/d now", "on 2026-11-16.", "<env>\n1\n</env></env>", "Session 9af", "session A-F",
    "Tuesday, March 3", "ééxb", "id abc", "T-1 and T-22", "٣٤ Zahlen, ½ und ²", "naïve Straße ДОМ дом",
    "a\u00a0b\u2003c\u3000d\x1ce\x85f", "tab\there\r\nline two\n\nline four", "x_y-z[1]{2,3}^$|\\",
    "aaaa" * 200 + "b", "Ticket ABC-12, ticket abc-13", "[key]=value; [other]=", "‿_underscore＿",
    "🙂 emoji 👩‍💻 done", "", "\x00\x08\x1b\x7f", "…—“quoted” text", "\x1a\x1a", "a\ud800b\udfffc",
)  # fmt: skip


@each_row(
    "pattern",
    [
        r"(?:/[\w.-]+)+", r"\d{4}-\d\d-\d\d", r"(?s)<env>.*?</env>", r"(?i)session ([A-F\d]+)",
        r"(?:Mon|Tues|Wednes)day, [A-Z][a-z]+ \d{1,2}", r"é+[^a]b", r"(?P<value>[A-Z]+)-[0-9]+",
        r"T-[0-9]+", r"\d+", r"\D+", r"\w+", r"\W+", r"\s+", r"\S+", r"[\s\S]", r"[\W_]+", r"[^\W_]+",
        r"[^\s,]+", r"[\d\s]+", r"[^\d]+", r"[\D]+", r"[\S]+", r"[^\S\n]+", r".+", r"(?s).+", r"(?m)^\w+",
        r"(?m)\w+$", r"\A\w", r"\w\Z", r"[\[]key]", r"[]x]+", r"[^]x]+", r"[a[b]+", r"[\]a-]+", r"[a[^\d]+", r"a{,2}b?c|a{2}",
        r"a{2,}b", r"(a+)+b", r"(a|aa)+b", r"(?:a|b|)x|c+", r"\u00e9+", r"[\u0400-\u04ff]+",
        r"\U0001f642", r"\x41", r"[\x00-\x1f]+", r"[\b]", r"\t+", r"\r\n", r"[.]", r"\.", r"\[[^\]]+\]",
        r"\{2,3\}", r"[{},]+", r"\$|\^|\|", r"(?i)ticket (?P<value>[a-z]+)-\d+", r"(?i:дом)", r"x\_y\-z",
        r"a+?", r"a*?b", r"(?:ab?)?c", r"“[^”]+”", r"\\", r"[^\x00-\x7f]+", r"(?i)straSSe|straße",
    ],
)  # fmt: skip
def test_pattern_finds_what_re_finds(pattern: str) -> None:
    ours, python = user_pattern(pattern), re.compile(pattern)
    assert ours.groupindex == dict(python.groupindex)
    for text in SEARCHED:
        searched = without_surrogates(text)
        assert len(searched) == len(text)
        found = [[match.span(), *match.groups()] for match in ours.finditer(searched)]
        expected = [[match.span(), *match.groups()] for match in python.finditer(searched)]
        assert found == expected, text


def test_open_repeat_is_not_limited() -> None:
    rules = MatchRules([MatchRule(pattern="a+", placeholder="<a>")], shipped=False)
    assert rules.apply("b" + "a" * 9999 + "b") == ("b<a>b", {})


def test_text_with_a_lone_surrogate_keeps_it() -> None:
    rule = MatchRule(pattern="(?P<value>T-[0-9]+).", placeholder="<t>", everywhere=True)
    rules = MatchRules([rule], shipped=False)
    assert rules.apply("é\ud800T-1234\udfff, T-1") == ("é\ud800<t>\udfff, T-1", {"T-1234": "<t>"})


def test_optional_group_that_matches_nothing_stays() -> None:
    rule = MatchRule(pattern="id(?: (?P<value>[0-9]+))?", placeholder="<n>")
    assert MatchRules([rule], shipped=False).apply("id 12, id x") == ("id <n>, id x", {})


def test_shipped_rules_need_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert MatchRules().apply("<cwd>/work</cwd>")[0] == "<cwd>{{cwd}}</cwd>"
    with pytest.raises(MissingExtra, match=r"need google-re2; install it with: pip install"):
        ReplaySettings.decode("[[redact]]\npattern = 'acme'")


@pytest.mark.parametrize("rule", shipped_rules(), ids=lambda rule: rule.pattern[:40])
def test_shipped_rules_have_no_open_repeat(rule: MatchRule) -> None:
    """They are searched by `re`: bounded repeats keep its time in proportion to the text."""
    assert not re.search(r"(?<!\\)[*+]|\{\d+,\}", re.sub(r"\\.|\[[^\]]*\]", "", rule.pattern))


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
def test_accepted_pattern_matches_in_linear_time(pattern: str) -> None:
    """A pattern with exponential cost would not come back from these texts."""
    try:
        compiled = user_pattern(pattern)
    except ValueError:
        return
    for text in ("a" * 60 + "!", "ab" * 40 + "!", "b" * 60):
        compiled.sub("x", text)
