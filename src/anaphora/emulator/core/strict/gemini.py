"""What Google refuses on generateContent."""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import Any, Literal

import msgspec

from anaphora.errors import Upstream

from .case import Case, Object, objects, rejected, too_long
from .known import gemini as known
from .reading import Talk

_INVALID = "INVALID_ARGUMENT"
_TEXT = frozenset(("text", "thought"))


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "model"]
    parts: list[_Text]


TALK = Talk("contents", msgspec.json.Decoder(_Plain).decode)


def refused(message: str, param: str | None = None) -> Upstream:
    return rejected(message, param=param, code=_INVALID)


def get(found: Object, name: str) -> Any:
    """A field by its name in camel case; the other spelling means the same."""
    return found[name] if name in found else found.get(_snake(name))


def unknown_names(case: Case) -> Upstream | None:
    """google-gemini/gemini-cli#13972, Alishahryar1/free-claude-code#542."""
    if (error := _unknown(case.body, known.TOP, "")) is not None:
        return error
    config = get(case.body, "generationConfig")
    if isinstance(config, dict):
        error = _unknown(config, known.GENERATION_CONFIG, "generation_config")
        if error is not None:
            return error
    for at, content in case.unusual:
        if not content.keys() <= known.CONTENT:
            error = _unknown(content, known.CONTENT, f"contents[{at}]")
            if error is not None:
                return error
        for place, part in objects(content.get("parts")):
            if not part.keys() <= known.PART:
                error = _unknown(part, known.PART, f"contents[{at}].parts[{place}]")
                if error is not None:
                    return error
    return None


def _unknown(found: Object, names: frozenset[str], path: str) -> Upstream | None:
    if found.keys() <= names:
        return None
    name = next((name for name in found if _camel(name) not in names), None)
    if name is None:
        return None
    at = f" at '{path}'" if path else ""
    message = f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
    return refused(message, path or None)


def contents(case: Case) -> Upstream | None:
    if case.body.get("contents"):
        return None
    return refused("* GenerateContentRequest.contents: contents is not specified\n")


def roles(case: Case) -> Upstream | None:
    """One without a role is the user's on the Gemini API; Vertex wants to be told."""
    vertex = "/publishers/" in case.asked.path or "/projects/" in case.asked.path
    known_roles = ("user", "model", "function") if vertex else (None, "user", "model", "function")
    for _, content in case.unusual:
        if content.get("role") not in known_roles:
            return refused("Please use a valid role: user, model.")
    return None


def cached(case: Case) -> Upstream | None:
    """What is cached may not be sent again (PROVIDERS.md, section 9)."""
    if not get(case.body, "cachedContent"):
        return None
    if not any(get(case.body, name) for name in ("systemInstruction", "tools", "toolConfig")):
        return None
    return refused(
        "CachedContent can not be used with GenerateContent request setting system_instruction, "
        "tools or tool_config.\n\nProposed fix: move those values to CachedContent from "
        "GenerateContent request."
    )


def function_turns(case: Case) -> Upstream | None:
    """Calls come behind the user or a response, responses behind calls, and as many as those.
    What one role says in a row is one turn, as in recorded traffic.
    google-gemini/gemini-cli#11814, #5443; langchain-ai/langchain#27799,
    BerriAI/litellm#26755."""
    if not _calls_anything(case):
        return None
    turns = _turns(case)
    held = bool(get(case.body, "cachedContent"))  # what came before is in the cache
    for at, turn in enumerate(turns):
        before = turns[at - 1] if at else None
        calls, responses = turn["functionCall"], turn["functionResponse"]
        if calls and before is None and not held:
            return refused(
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn."
            )
        unasked = not held if before is None else not before["functionCall"]
        if responses and unasked:
            return refused(
                "Please ensure that function response turn comes immediately after a function "
                "call turn."
            )
        after = turns[at + 1] if at + 1 < len(turns) else None
        if calls and after is not None and after["functionResponse"] != calls:
            return refused(
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
    return None


def _calls_anything(case: Case) -> bool:
    """Most conversations are texts, and their turns need not be counted."""
    return any(
        not part.keys() <= _TEXT
        for _, content in case.unusual
        for _, part in objects(content.get("parts"))
    )


def _turns(case: Case) -> list[Counter[str]]:
    """How many calls and responses each turn has."""
    turns: list[Counter[str]] = []
    speaker: Any = ...
    for _, content in case.messages:
        if content.get("role") != speaker:
            turns.append(Counter())
        speaker = content.get("role")
        for _, part in objects(content.get("parts")):
            for kind in ("functionCall", "functionResponse"):
                turns[-1][kind] += get(part, kind) is not None
    return turns


def overflow(case: Case) -> Upstream | None:
    return too_long(case, "google", "gemini")


@functools.lru_cache(maxsize=1024)
def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


@functools.lru_cache(maxsize=1024)
def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


CHECKS = (unknown_names, contents, roles, cached, function_turns, overflow)
