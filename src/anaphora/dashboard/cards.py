"""The parts that pages are made of: cards, headline figures, tags, and what to do next where there
is nothing to show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import htpy
import msgspec

from anaphora.wording import counted

Tone: TypeAlias = Literal["", "good", "warn", "bad"]


class Stat(msgspec.Struct, frozen=True):
    """A headline figure."""

    title: str
    value: str
    detail: str = ""
    tone: Tone = ""


def stats(figures: Sequence[Stat]) -> htpy.Element:
    return htpy.dl(".stats")[
        [
            htpy.div(class_=["stat", each.tone])[
                htpy.dt[each.title],
                htpy.dd(".value")[each.value],
                each.detail and htpy.dd(".detail")[each.detail],
            ]
            for each in figures
        ]
    ]


def card(title: str, *content: htpy.Node, about: htpy.Node = None) -> htpy.Element:
    """A part of a page with a heading."""
    return htpy.section(".card")[htpy.h2[title], about and htpy.p(".about")[about], content]


def empty(title: str, *content: htpy.Node) -> htpy.Element:
    """Shown in place of calls that there are none of, with what to do next."""
    return htpy.div(".empty")[
        htpy.p(".empty-title")[title], [htpy.p[each] for each in content if each]
    ]


def tag(text: htpy.Node, tone: Tone = "") -> htpy.Element:
    return htpy.span(class_=["tag", tone])[text]


def facts(pairs: Iterable[tuple[str, htpy.Node]]) -> htpy.Element:
    """Names and values, one pair a line."""
    return htpy.dl(".facts")[[[htpy.dt[title], htpy.dd[value]] for title, value in pairs]]


def more(left_out: int, noun: str, plural: str = "") -> htpy.Node:
    """Says how many rows a table left out; for `plural` see `counted`."""
    text = counted(left_out, f"more {noun}", plural and f"more {plural}")
    return left_out > 0 and htpy.p(".dim")[f"and {text}"]
