"""What a recording notes of the parameters of its calls: which model, how much thinking.

A note is words separated by semicolons. `model_change:…` and `thinking_level_change:…` say what was
chosen since the call before; several of them are somebody going through a list, and the last holds.
"""

from __future__ import annotations

from .form import Trace, TraceCall, TraceMessage

_OFF = "off"


class Parameters:
    """The parameters of a conversation's calls, one call after the other, as the rules name them.

    What was set before the first note, nobody says: thinking was off when no answer so far shows
    any, and otherwise at whatever level is first heard of. A turn thinks in one way from the user's
    words to the answer, so a level that is chosen between tool results waits for the next turn.
    """

    def __init__(self, trace: Trace) -> None:
        self._messages = trace.messages
        self._thought = 0
        """Messages that were looked at for thinking."""
        self._thinks = False
        self._chosen: str | None = None
        self._level: str | None = None
        self._usual: str | None = None
        self.model = trace.model

    def after(self, call: TraceCall, *, in_loop: bool) -> dict[str, bytes]:
        """The parameters of this call, without the model's name."""
        chosen = _last(call.note, "thinking_level_change")
        if chosen is not None:
            if self._usual is None:
                self._usual = self._guess(call, chosen)
            self._chosen = chosen
        if not in_loop:
            self._level = self._chosen
        self.model = call.model or _last(call.note, "model_change") or self.model
        if self._level is None or self._level == self._usual:
            return {}
        return {"thinking": self._level.encode()}

    def _guess(self, call: TraceCall, level: str) -> str:
        for message in self._messages[self._thought : call.messages]:
            self._thinks = self._thinks or has_thinking(message)
        self._thought = call.messages
        if not self._thinks:
            return _OFF
        return "on" if level == _OFF else level


def has_thinking(message: TraceMessage) -> bool:
    """Whether the model's reasoning is part of a message."""
    content = message.content
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")
        for block in content
    )


def _last(note: str | None, what: str) -> str | None:
    values = [word.partition(":")[2] for word in (note or "").split(";") if word.startswith(what)]
    return values[-1].strip() or None if values else None
