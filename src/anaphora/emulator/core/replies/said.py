"""What the emulator answers, before any provider's words for it."""

from __future__ import annotations

import msgspec

from anaphora.catalog import Profile
from anaphora.emulator.core.billing import count_text
from anaphora.tokens import bytes_in
from anaphora.values import Part, Refusal, StopReason, Text, Thinking, ToolCall


class Said(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[Part, ...] = ()
    stop: StopReason = "end"
    stop_sequence: str | None = None
    hidden: int = 0
    """Tokens of reasoning that is billed and not shown."""
    pace: float | None = None
    """Seconds between two pieces of a stream; None: as the emulator was started."""


def tokens_of(said: Said, profile: Profile) -> tuple[int, int]:
    """Everything that was said, and how much of that was reasoning."""
    spoken, thought = 0, said.hidden
    for part in said.parts:
        if isinstance(part, Thinking):
            thought += _tokens(part, profile)
        else:
            spoken += _tokens(part, profile)
    return spoken + thought, thought


def _tokens(part: Part, profile: Profile) -> int:
    if isinstance(part, Thinking):
        return max(1, count_text(part.text, profile))
    if isinstance(part, Text | Refusal):
        return count_text(part.text, profile)
    if isinstance(part, ToolCall):
        return count_text(part.name + part.arguments, profile)
    return 0


def limited(said: Said, most: int | None, stops: tuple[str, ...], profile: Profile) -> Said:
    """The answer cut where a stop sequence stands in it, or where the tokens end."""
    parts: list[Part] = []
    left = None if most is None else most - said.hidden
    for part in said.parts:
        if isinstance(part, Text):
            cut = _stopped(part.text, stops)
            if cut is not None:
                parts.append(Text(part.text[: cut[0]]))
                return _ended(said, parts, "stop_sequence", cut[1])
        if left is not None:
            size = _tokens(part, profile)
            if size > left:
                if isinstance(part, Text) and left > 0:
                    parts.append(Text(_shortened(part.text, left, profile)))
                elif isinstance(part, Thinking):
                    parts.append(_cut_thinking(part, max(0, left), profile))
                return _ended(said, parts, "length", None)
            left -= size
        parts.append(part)
    if left is not None and left < 0:  # the tokens ended in reasoning that is not shown
        return _ended(said, parts, "length", None)
    return said


def _stopped(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    found = [(text.index(stop), stop) for stop in stops if stop and stop in text]
    return min(found) if found else None


def _shortened(text: str, tokens: int, profile: Profile) -> str:
    size = bytes_in(tokens, profile.bytes_per_token.value)
    return text.encode()[:size].decode(errors="ignore")


def _cut_thinking(part: Thinking, tokens: int, profile: Profile) -> Thinking:
    """Reasoning that the limit ends: it stays unsigned, because a signature comes behind it."""
    signature = None if part.signature is None else ""
    text = _shortened(part.text, tokens, profile)
    return msgspec.structs.replace(part, text=text, signature=signature)


def _ended(said: Said, parts: list[Part], stop: StopReason, sequence: str | None) -> Said:
    return msgspec.structs.replace(said, parts=tuple(parts), stop=stop, stop_sequence=sequence)
