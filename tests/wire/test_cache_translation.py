"""Caching across wires: a translated request caches nothing that was not asked for, and a lifetime
that changes is named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.tables import each_row

from anaphora.cli import translate

MODELS = {
    "anthropic": "claude-opus-5-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
}
EXPLICIT = {"mode": "explicit"}
KEPT = {"type": "ephemeral"}
MARKERS = ("cache_control", "prompt_cache_breakpoint")


def chat(options: Any = None, mark: Any = None, **more: Any) -> dict[str, Any]:
    part = {"type": "text", "text": "Hi."} | ({"prompt_cache_breakpoint": mark} if mark else {})
    encoded = {"model": "gpt-5.6", "max_completion_tokens": 9, **more}
    encoded["messages"] = [{"role": "user", "content": [part]}]
    return encoded | ({"prompt_cache_options": options} if options else {})


def responses(options: Any = None, mark: Any = None, **more: Any) -> dict[str, Any]:
    part = {"type": "input_text", "text": "Hi."}
    part |= {"prompt_cache_breakpoint": mark} if mark else {}
    encoded = {"model": "gpt-5.6", "max_output_tokens": 9, **more}
    encoded["input"] = [{"role": "user", "content": [part]}]
    return encoded | ({"prompt_cache_options": options} if options else {})


def anthropic(top: Any = None, mark: Any = None) -> dict[str, Any]:
    block = {"type": "text", "text": "Hi."} | ({"cache_control": mark} if mark else {})
    encoded = {"model": "claude-opus-5-5", "max_tokens": 9}
    encoded |= {"messages": [{"role": "user", "content": [block]}]}
    return encoded | ({"cache_control": top} if top else {})


def gemini(**more: Any) -> dict[str, Any]:
    config = {"maxOutputTokens": 9}
    contents = [{"role": "user", "parts": [{"text": "Hi."}]}]
    return {"contents": contents, "generationConfig": config} | more


#: Wire, request, how many breakpoints it has, and for how long it asks for automatic caching.
CASES: list[tuple[str, dict[str, Any], int, str | None]] = [
    case
    for name, make in (("openai_chat", chat), ("openai_responses", responses))
    for case in (
        (name, make(), 0, None),
        (name, make(EXPLICIT), 0, None),
        (name, make({"mode": "explicit", "ttl": "30m"}), 0, None),
        (name, make(EXPLICIT, EXPLICIT), 1, None),
        (name, make({"mode": "explicit", "ttl": "30m"}, EXPLICIT), 1, None),
        (name, make(EXPLICIT, {"mode": "explicit", "ttl": "12h"}), 1, None),
        (name, make(None, EXPLICIT), 1, None),
        (name, make({"mode": "implicit"}), 0, None),
        (name, make({"ttl": "30m"}), 0, "30m"),
        (name, make(prompt_cache_retention="24h"), 0, None),
        (name, make(prompt_cache_key="k"), 0, None),
    )
]
CASES += [
    ("openai_responses", responses({"ttl": "12h"}), 0, "12h"),
    ("anthropic", anthropic(), 0, None),
    ("anthropic", anthropic(KEPT), 0, "5m"),
    ("anthropic", anthropic({**KEPT, "ttl": "1h"}), 0, "1h"),
    ("anthropic", anthropic(None, KEPT), 1, None),
    ("anthropic", anthropic(None, {**KEPT, "ttl": "1h"}), 1, None),
    ("gemini", gemini(), 0, None),
    ("gemini", gemini(cachedContent="cachedContents/1"), 0, None),
]


def translated(path: Path, body: dict[str, Any], name: str, target: str) -> tuple[Any, str]:
    file = path / "request.json"
    file.write_text(json.dumps(body))
    options = ["--from", name, "--to", target, "--model", MODELS[target]]
    run = CliRunner().invoke(translate.command, [str(file), *options])
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout), run.stderr


def found(value: Any, names: tuple[str, ...], depth: int = 0) -> Iterator[tuple[int, Any]]:
    """Fields of these names, and how deep they stand."""
    inside = value.items() if isinstance(value, dict) else []
    for name, item in inside:
        if name in names:
            yield depth, item
        yield from found(item, names, depth + 1)
    for item in value if isinstance(value, list) else []:
        yield from found(item, names, depth + 1)


PAIRS = [
    pytest.param(*case, target, id=f"{at} {case[0]} {target}")
    for (at, case), target in itertools.product(enumerate(CASES), MODELS)
]


@each_row("name, body, marks, automatic, target", PAIRS)
def test_caching_is_never_added_by_translation(
    tmp_path: Path, name: str, body: dict[str, Any], marks: int, automatic: str | None, target: str
) -> None:
    again, reported = translated(tmp_path, body, name, target)
    markers = list(found(again, MARKERS))
    requested = [marker for depth, marker in markers if depth == 0]
    lifetimes = [marker.get("ttl") for marker in requested]
    lifetimes += [options.get("ttl") for _, options in found(again, ("prompt_cache_options",))]
    placed = [marker for depth, marker in markers if depth]
    assert len(placed) <= marks
    assert len(requested) <= (automatic is not None)
    # A breakpoint of the caller's that is not there is named,
    assert len(placed) == marks or "[mark_left_out]" in reported
    # and so is a lifetime that is not the one that was asked for.
    theirs = {"anthropic": "5m", "openai_chat": "30m", "openai_responses": "30m"}
    if name != target and {name, target} <= theirs.keys():
        before = [m.get("ttl") or theirs[name] for d, m in found(body, MARKERS) if d]
        after = [marker.get("ttl") or theirs[target] for marker in placed]
        assert before == after or "[ttl_changed]" in reported
        if automatic is not None and target == "anthropic":
            assert (lifetimes[0] or "5m") == automatic or "[ttl_changed]" in reported
    if not marks and automatic is None:
        assert not markers
    for kept in ("prompt_cache_retention", "cachedContent", "keep_alive", "prompt_cache_key"):
        assert kept not in again or kept in body
        assert kept in again or kept not in body or reported
