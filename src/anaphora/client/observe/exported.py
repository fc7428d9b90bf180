"""What of a record may leave this process: our own words, the app's names, numbers, ids.

Never: what an error said (providers quote prompts in it), a notice's text, a verdict's sentence or
the bytes around a change, the raw usage object, what a URL says before its `@`.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator

from anaphora import errors
from anaphora.client.response import BlockShare, Record
from anaphora.values import Section, SegmentRole

#: Stands for a word that is none, or for one too many.
OTHER = "other"

#: The conventions' word for an error that has no name here.
OTHER_ERROR = "_OTHER"

_WORD = re.compile(r"[\x21-\x7e]{1,200}")
_LONGEST_LABEL = 80
_ROLES = frozenset(role.value for role in SegmentRole)


def _classes(names: dict[str, object], base: type) -> Iterator[str]:
    for name, value in names.items():
        if isinstance(value, type) and issubclass(value, base):
            yield name


_ERRORS = frozenset(
    (
        *_classes(vars(errors), errors.AnaphoraError),
        *_classes(vars(builtins), BaseException),
        "CancelledError",
    )
)


def word(text: str) -> str:
    """A name or an id that came over the wire. Ids have no blanks; a sentence has."""
    return text if _WORD.fullmatch(text) else OTHER


def label(text: str) -> str:
    """A name that the app gave: one short line of it."""
    if len(text) > _LONGEST_LABEL:
        text = text[: _LONGEST_LABEL - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def error_type(name: str | None) -> str | None:
    """An error's class; whatever is no class that is known has no name."""
    return name if name is None or name in _ERRORS else OTHER_ERROR


def outcome(error: str | None) -> str:
    return error_type(error) or "ok"


def address(host: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port` or `[v6]:port`; who logs in there stays unsaid."""
    host = host.rpartition("@")[2]
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and len(port) <= 5 and (":" not in name or name.endswith("]")):
        return word(name.strip("[]")), int(port)
    return word(host.strip("[]")), None


def queued(record: Record) -> float:
    return sum(attempt.queued for attempt in record.attempts)


def block_label(text: str, section: Section) -> str:
    """A block's label. Of a message only its run: ids are as many as there are messages."""
    if section == "messages" and (run := text.partition(" ")[0]) in _ROLES:
        return run
    return label(text)


def shares(blocks: Iterable[BlockShare], most: int) -> dict[str, int]:
    """Tokens by label, in the prompt's order; labels past the first `most` are one."""
    out: dict[str, int] = {}
    for block in blocks:
        name = block_label(block.label, block.section)
        if name not in out and len(out) >= most:
            name = OTHER
        out[name] = out.get(name, 0) + block.tokens
    return out


class Bounded:
    """Lets so many different words through; each further one is `other`."""

    __slots__ = ("_most", "_seen")

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, text: str) -> str:
        if text in self._seen:
            return text
        if len(self._seen) >= self._most:
            return OTHER
        self._seen.add(text)
        return text
