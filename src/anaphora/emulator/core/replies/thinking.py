"""Reasoning in the form that each wire tells it in."""

from __future__ import annotations

import base64

from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.prompt import Call
from anaphora.values import Thinking

from .dice import Dice
from .words import sentences


def thinking(call: Call, wire: str, profile: Profile, dice: Dice) -> tuple[Thinking | None, int]:
    """The reasoning that is shown, and the tokens of what is not."""
    asked = call.params.reasoning
    mode = asked.mode if asked is not None else None
    if mode == "disabled" or (asked is not None and asked.effort == "none"):
        return None, 0
    if wire == "anthropic":
        if mode is None:
            return None, 0
        shown = "" if asked is not None and asked.display == "omitted" else _text(dice)
        return Thinking(shown, signature=_opaque(dice), provider="anthropic"), 0
    if wire == "gemini":
        if asked is not None and asked.display == "summarized":
            return Thinking(_text(dice), provider="gemini"), 0
        return None, dice.between(16, 64) if asked is not None else 0
    if wire == "ollama":
        return (Thinking(_text(dice), provider="ollama"), 0) if asked is not None else (None, 0)
    if not profile.can("reasoning"):
        return None, 0
    if wire == "openai_responses":
        summary = _text(dice) if asked is not None and asked.summary else ""
        own = Thinking(summary, data=_opaque(dice), provider=wire, extras=_item(dice))
        return own, dice.between(16, 64)
    field = profile.reasoning_field
    if field is not None and field.value:
        extras = {wire: dumps({"field": field.value}).decode()}
        return Thinking(_text(dice), provider=wire, extras=extras), 0
    return None, dice.between(16, 64)


def _text(dice: Dice) -> str:
    return sentences(dice, 8, 20)


def _item(dice: Dice) -> dict[str, str]:
    return {"openai_responses": dumps({"id": f"rs_{dice.name()}"}).decode()}


def _opaque(dice: Dice) -> str:
    """Something that nobody but its provider could read."""
    drawn = bytes(dice.below(256) for _ in range(48))
    return base64.b64encode(drawn).decode()
