"""Replies, scripted or generated: their parts, tokens and limits, before any provider's format."""

from __future__ import annotations

import msgspec

from anaphora.catalog import Profile
from anaphora.tokens import bytes_in, tokens_in
from anaphora.values import Part, Refusal, StopReason, Text, Thinking, ToolCall


class GeneratedReply(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[Part, ...] = ()
    stop_reason: StopReason = "end"
    stop_sequence: str | None = None
    hidden: int = 0
    """Tokens of reasoning that is billed and not shown."""
    pace: float | None = None
    """Seconds between two chunks of a stream; None: the emulator's latency."""

    def tokens(self, profile: Profile) -> tuple[int, int]:
        """Output tokens in all, and how many of them are reasoning."""
        visible, reasoning = 0, self.hidden
        for part in self.parts:
            if isinstance(part, Thinking):
                reasoning += _part_tokens(part, profile)
            else:
                visible += _part_tokens(part, profile)
        return visible + reasoning, reasoning

    def limited(
        self, max_tokens: int | None, stops: tuple[str, ...], profile: Profile
    ) -> GeneratedReply:
        """The reply cut at its first stop sequence, or at `max_tokens`."""
        parts: list[Part] = []
        left = None if max_tokens is None else max_tokens - self.hidden
        for part in self.parts:
            if isinstance(part, Text):
                found = [
                    (part.text.index(stop), stop) for stop in stops if stop and stop in part.text
                ]
                if found:
                    end, sequence = min(found)
                    parts.append(Text(part.text[:end]))
                    return self._cut(parts, "stop_sequence", sequence)
            if left is not None:
                size = _part_tokens(part, profile)
                if size > left:
                    if isinstance(part, Text) and left > 0:
                        parts.append(Text(_shortened(part.text, left, profile)))
                    elif isinstance(part, Thinking):
                        parts.append(_cut_thinking(part, max(0, left), profile))
                    return self._cut(parts, "length")
                left -= size
            parts.append(part)
        if left is not None and left < 0:  # the limit was reached in hidden reasoning
            return self._cut(parts, "length")
        return self

    def _cut(
        self, parts: list[Part], stop: StopReason, sequence: str | None = None
    ) -> GeneratedReply:
        return msgspec.structs.replace(
            self, parts=tuple(parts), stop_reason=stop, stop_sequence=sequence
        )


def count_text(text: str, profile: Profile) -> int:
    return tokens_in(len(text.encode()), profile.bytes_per_token.value)


def _part_tokens(part: Part, profile: Profile) -> int:
    if isinstance(part, Thinking):
        return max(1, count_text(part.text, profile))
    if isinstance(part, Text | Refusal):
        return count_text(part.text, profile)
    if isinstance(part, ToolCall):
        return count_text(part.name + part.arguments, profile)
    return 0


def _shortened(text: str, tokens: int, profile: Profile) -> str:
    size = bytes_in(tokens, profile.bytes_per_token.value)
    return text.encode()[:size].decode(errors="ignore")


def _cut_thinking(part: Thinking, tokens: int, profile: Profile) -> Thinking:
    """Reasoning cut by the limit has an empty signature: the real one would come after it."""
    signature = None if part.signature is None else ""
    text = _shortened(part.text, tokens, profile)
    return msgspec.structs.replace(part, text=text, signature=signature)
