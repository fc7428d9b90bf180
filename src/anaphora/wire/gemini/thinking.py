"""How much the model should think, said and read: a level, or a budget in tokens."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from anaphora.prompt import Reasoning
from anaphora.values import Notice

_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_OFF, _AUTOMATIC = 0, -1


def thinking_config(reasoning: Reasoning | None, notices: list[Notice]) -> dict[str, Any]:
    """The thinking config; notices for what of it Gemini cannot be asked for."""
    if reasoning is None:
        return {}
    said: dict[str, Any] = {}
    off = reasoning.mode == "disabled" or reasoning.effort == "none"
    level = _level(reasoning, off, notices)
    if off:
        said["thinkingBudget"] = _OFF
    elif level is not None:
        said["thinkingLevel"] = level
    elif reasoning.budget_tokens is not None:
        said["thinkingBudget"] = reasoning.budget_tokens
    elif reasoning.mode == "adaptive":
        said["thinkingBudget"] = _AUTOMATIC
    if reasoning.display is not None:
        said["includeThoughts"] = reasoning.display == "summarized"
    if reasoning.budget_tokens is not None and (off or level is not None):
        notices.append(_left_out("budget_tokens", "a budget goes with no level, nor with none"))
    if reasoning.mode == "between_tools":
        notices.append(_left_out("mode", "Gemini cannot be told when to think"))
    if reasoning.mode == "enabled" and not said:
        notices.append(_left_out("mode", "without a level or a budget Gemini thinks as it likes"))
    if reasoning.summary is not None:
        notices.append(_left_out("summary", "Gemini has no summary setting"))
    return said


def _level(reasoning: Reasoning, off: bool, notices: list[Notice]) -> str | None:
    effort = reasoning.effort
    if effort is None or effort == "none":
        return None
    level = _LEVELS.get(effort)
    if off or level is None:
        why = "thinking is off" if off else f"Gemini has no level {effort!r}"
        notices.append(_left_out("effort", why))
        return None
    if level.lower() != effort:
        notices.append(
            Notice("effort_lowered", f"{effort} is {level} here", "params.reasoning.effort")
        )
    return level


def _left_out(field: str, why: str) -> Notice:
    return Notice("param_left_out", f"{why}; left out", f"params.reasoning.{field}")


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


class Thinks(msgspec.Struct, frozen=True, rename="camel"):
    """A thinking config, as far as it is understood."""

    thinking_level: str | None = None
    thinking_budget: int | None = None
    include_thoughts: bool | None = None


_EFFORTS = {"MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}


def is_level(said: str | None) -> bool:
    return said is not None and said.upper() in _EFFORTS


def read_thinking(told: Thinks) -> Reasoning | None:
    """What a config asks for; None when that is nothing."""
    level, budget, shown = told.thinking_level, told.thinking_budget, told.include_thoughts
    if (level, budget, shown) == (None, None, None):
        return None
    display: Literal["summarized", "omitted"] | None = None
    if shown is not None:
        display = "summarized" if shown else "omitted"
    if level is not None:
        return Reasoning(effort=_EFFORTS[level.upper()], display=display)
    if budget is None:
        return Reasoning(display=display)
    if budget in (_OFF, _AUTOMATIC):
        return Reasoning("disabled" if budget == _OFF else "adaptive", display=display)
    return Reasoning("enabled", budget_tokens=budget, display=display)
