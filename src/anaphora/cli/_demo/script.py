"""What the emulator answers: the story, whoever asks and however the prompt is laid out."""

from __future__ import annotations

from anaphora.canonical import dumps
from anaphora.emulator.replies.script import (
    Script,
    ScriptMatch,
    ScriptReply,
    ScriptRule,
    ScriptToolCall,
)

from . import story
from .story import Step


def script() -> Script:
    """A rule for each turn, found by the state: at the end of the prompt, or at its head."""
    rules = []
    for turn, step in enumerate((*story.STEPS, *story.AFTERWARDS), 1):
        here, reply = story.opening(turn), _written(step)
        rules += [
            ScriptRule(match=ScriptMatch(text=here), reply=reply),
            ScriptRule(match=ScriptMatch(system=here), reply=reply),
        ]
    return Script(tuple(rules))


def _written(step: Step) -> ScriptReply:
    calls = [
        ScriptToolCall(name=use.tool, arguments=dumps(use.arguments).decode()) for use in step.uses
    ]
    return ScriptReply(text=step.says, tool_calls=tuple(calls))
