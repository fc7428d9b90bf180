"""Text that reads like text and means nothing."""

from __future__ import annotations

from .dice import Dice

_WORDS = (
    "the a one this every prefix answer question reader model cache turn byte token block marker "
    "message letter river morning window garden signal number pattern order list table record "
    "holds keeps reads writes follows begins ends stays moves returns names shows counts finds "
    "same next first last stable quiet early small plain whole clear short known local "
    "and then while before after because where again slowly always often here now"
).split()


def sentences(dice: Dice, least: int = 12, most: int = 40) -> str:
    """So many words, in sentences."""
    left = dice.between(least, most)
    said = []
    while left > 0:
        count = min(left, dice.between(5, 11))
        words = [dice.one_of(_WORDS) for _ in range(count)]
        said.append(" ".join(words).capitalize() + ".")
        left -= count
    return " ".join(said)


def word(dice: Dice) -> str:
    return dice.one_of(_WORDS)


def pieces(text: str, size: int = 12) -> list[str]:
    """A text as a stream tells it: a few words at a time, cut where a word ends."""
    found: list[str] = []
    start = 0
    while start < len(text):
        end = text.find(" ", start + size)
        end = len(text) if end < 0 else end
        found.append(text[start:end])
        start = end
    return found
