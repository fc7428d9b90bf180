"""A field that has no name here, planted in every object of a request: it goes back to its own wire
where it stood, or a notice names it; another wire leaves it out with a notice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import rich
from support.rich import MODELS, NAME, PATHS, REQUESTS
from support.roundtrip import RecordedExchange
from support.roundtrip.rules import check
from support.tables import table

from anaphora import catalog, wire
from anaphora.cli import translate
from anaphora.rendered import Plan
from anaphora.values import Notice

PLANTINGS = [
    (f"{name} {rich.written(place)} {planting}", (name, place, planting))
    for name, request in REQUESTS.items()
    for place in rich.places(request)
    for planting in ("kept", {"a": [1]})
]


def names(notices: tuple[Notice, ...]) -> bool:
    return any(NAME in notice.message for notice in notices)


@table(PLANTINGS)
@pytest.mark.long
def test_unknown_field_round_trips_in_place(
    name: str, place: tuple[str | int, ...], planting: Any
) -> None:
    body = rich.planted(REQUESTS[name], place, planting)
    outcome = check(
        RecordedExchange(
            id="planted",
            wire=name,
            request=json.dumps(body),
            response="{}",
            status=400,
            path=PATHS.get(name, ""),
        )
    )
    assert not outcome.unparsed
    if outcome.changed:
        assert names(outcome.notices)
        # Only what may not be sent: everything else has to stay.
        assert place[-1] in _MARKERS


#: What other wires leave out as a whole, so that its fields are not named one by one: a tool or a
#: block of the provider's own, thinking, a field of the request, a mark where there are none.
WHOLE = {
    "anthropic": (
        "$.tools[1]",
        "$.context_management",
        "$.messages[0].content[2].citations",
        "$.messages[1].content[0]",
        "$.messages[1].content[1].citations",
        "$.messages[1].content[2].caller",
        "$.messages[1].content[3]",
    ),
    "openai_chat": (
        "$.tools[1]",
        "$.web_search_options",
        "$.metadata",
        "$.messages[2].tool_calls[1]",
    ),
    "openai_responses": (
        "$.tools[1]",
        "$.metadata",
        "$.input[2]",
        "$.input[3].content[0].annotations",
        "$.input[6]",
    ),
    "gemini": (
        "$.tools[1]",
        "$.safetySettings",
        "$.contents[1].parts[0]",
        "$.contents[1].parts[3]",
        "$.contents[1].parts[4]",
    ),
    "bedrock": (
        "$.guardrailConfig",
        "$.performanceConfig",
        "$.requestMetadata",
        "$.messages[0].content[2].document",
        "$.messages[1].content[0]",
        "$.messages[1].content[1].citationsContent",
        "$.messages[2].content[1]",
    ),
}
SAME_WIRE = ("--from", "anthropic", "--to", "anthropic")
_MARKERS = ("cache_control", "prompt_cache_breakpoint", "cachePoint")

#: What only the model that was asked takes; another one refuses it with a clear error.
_REFUSED = ("tool_choice", "toolConfig", "think", "generationConfig.thinkingConfig")


def translated(name: str, body: Any, target: str) -> tuple[bytes, set[str]]:
    call = wire.get(name).parse(rich.encoded(body), PATHS.get(name, ""))
    codec, profile = wire.get(target), catalog.profile(wire.PROVIDERS[target], MODELS[target])
    rendered = codec.render(call, profile)
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    return codec.assemble(rendered, plan).body.join(), {str(each) for each in rendered.notices}


def for_any_model(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(REQUESTS[name]))
    for path in _REFUSED:
        *outer, last = path.split(".")
        inner = body
        for step in outer:
            inner = inner.get(step, {})
        inner.pop(last, None)
    return body


@pytest.mark.parametrize("name, target", list(itertools.permutations(MODELS, 2)))
@pytest.mark.long
def test_other_wires_drop_unknown_field_with_notice(name: str, target: str) -> None:
    body = for_any_model(name)
    _, before = translated(name, body, target)
    silent = []
    for place in rich.places(body):
        sent, reported = translated(name, rich.planted(body, place), target)
        if NAME.encode() not in sent and not reported - before:
            silent.append(rich.written(place))
    whole = [path for path in silent if path.startswith(WHOLE[name]) or path.endswith(_MARKERS)]
    assert silent == whole
    for path in WHOLE[name]:
        assert before, f"{path} is left out, so there has to be a notice"


def test_fields_of_anthropic_messages_stay_with_their_message(tmp_path: Path) -> None:
    """Betas: when a system message is cleared, and an effort for one turn. Neighbours of one role
    are one message, unless one of them has such fields."""
    messages = [
        {"role": "user", "content": "One."},
        {"role": "user", "content": "Two.", "output_config": {"effort": "low"}},
        {"role": "user", "content": "Three."},
        {"role": "user", "content": "Four."},
        {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"},
        {"role": "system", "content": "In French.", "clear_at": "never"},
    ]
    file = tmp_path / "request.json"
    body = {"model": MODELS["anthropic"], "max_tokens": 9, "messages": messages}
    file.write_text(json.dumps(body))
    run = CliRunner().invoke(translate.command, [str(file), *SAME_WIRE])
    assert run.exit_code == 0, run.output
    assert not run.stderr

    def text(*output_bytes: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": each} for each in output_bytes]

    assert json.loads(run.stdout)["messages"] == [
        {"role": "user", "content": text("One.")},
        {"role": "user", "content": text("Two."), "output_config": {"effort": "low"}},
        {"role": "user", "content": text("Three.", "Four.")},
        {"role": "system", "content": text("Be brief."), "clear_at": "next_user_message"},
        {"role": "system", "content": text("In French."), "clear_at": "never"},
    ]


def test_fields_of_a_system_message_that_becomes_user_text_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    body = {
        "model": "claude-sonnet-4-5",  # takes no system messages there
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "One."},
            {"role": "system", "content": "Be brief.", "clear_at": "never"},
        ],
    }
    file.write_text(json.dumps(body))
    run = CliRunner().invoke(translate.command, [str(file), *SAME_WIRE])
    assert "clear_at" not in run.stdout
    assert "[fields_left_out]" in run.stderr
