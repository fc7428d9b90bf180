"""Counts each answer once, in all files that a command reads.

A session that is resumed or forked may be written to another file, with all earlier answers. An
answer is identified by the id of the provider or the program; without one, by its time, its usage
and a digest of its content. It counts as a call in the file that begins first, and only as a
message in the others.

    index = AnswerIndex()
    for file in files: index.add_all(file, entries)      # only digests are kept
    for entry in index.once(file, entries): ...          # of the file, read again

Bills without their conversations follow the same rule: `add_times`, `add_answer`, `keeper`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from blake3 import blake3
from msgspec.structs import replace

from anaphora.canonical import encode_decoded
from anaphora.wording import counted

from .format import TraceCall, TraceUsage
from .log_lines import Answer, FoundTrace, Problem, TraceEntry

_BeganBy: TypeAlias = Literal["resume", "fork"]


def digest(*parts: object) -> bytes:
    return blake3(encode_decoded(parts)).digest(16)


def answer_of(id: Any, at: float | None, usage: TraceUsage, content: object) -> Answer:
    """The answer with this id; if it is empty, with this time, usage and content."""
    if isinstance(id, str) and id:
        return Answer(digest("id", id))
    return Answer(digest(at, _counts(usage), content))


def _counts(usage: TraceUsage) -> list[int | None]:
    return [usage.input, usage.cache_read, *usage.by_ttl.values(), usage.output, usage.reasoning]


class AnswerCopy(NamedTuple):
    """An answer in one of the files."""

    file: str
    is_last: bool
    """No call of its conversation follows."""
    copied: bool
    """The file says that it begins with another session."""


class _FileTimes:
    """The first time in a file, the last time of a call, and the number of the file."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = math.inf
        self.ended = -math.inf

    def add(self, began: float | None, ended: Iterable[float | None]) -> None:
        if began is not None:
            self.began = min(self.began, began)
        self.ended = max([self.ended, *(time for time in ended if time is not None)])


class AnswerIndex:
    """The answers in several files, by their digests."""

    def __init__(self, kept_elsewhere: Mapping[bytes, AnswerCopy] | None = None) -> None:
        """`kept_elsewhere`: the keepers of answers, if another index has found them."""
        self._elsewhere = kept_elsewhere or {}
        self._files: dict[str, _FileTimes] = {}
        self._counted: dict[str, set[bytes]] = {}
        """By file, the answers that were returned as calls."""
        self._copies: dict[bytes, list[AnswerCopy]] = {}
        self._keepers: dict[bytes, AnswerCopy] = {}
        """The copy of each answer that counts, once it was looked up."""
        self._usage: dict[bytes, TraceUsage] = {}
        """The usage of each answer that was written last: it has the most output."""

    def add(self, file: str, found: FoundTrace) -> None:
        """One conversation of a file."""
        self.add_times(file, found.began, (call.ended or call.at for call in found.trace.calls))
        last = len(found.answers) - 1
        pairs = zip(found.answers, found.trace.calls, strict=bool(found.answers))
        for index, (answer, call) in enumerate(pairs):
            self.add_answer(file, answer, is_last=index == last)
            self._learn(answer, call)

    def add_times(self, file: str, began: float | None, ended: Iterable[float | None]) -> None:
        """The first time in a file, and the times of its calls or the last of them."""
        self._files.setdefault(file, _FileTimes(len(self._files))).add(began, ended)
        self._keepers.clear()

    def add_answer(self, file: str, answer: Answer, *, is_last: bool) -> None:
        """One answer of a file whose times were added."""
        for key in filter(None, (answer.key, answer.untimed)):
            copies = self._copies.setdefault(key, [])
            if not copies or copies[-1].file != file:
                copies.append(AnswerCopy(file, is_last, answer.copied))

    def add_all(self, file: str, entries: Iterable[TraceEntry]) -> None:
        for entry in entries:
            if isinstance(entry, FoundTrace):
                self.add(file, entry)

    def _learn(self, answer: Answer, call: TraceCall) -> None:
        known = self._usage.get(answer.key)
        if call.usage is not None and (known is None or _output(known) < _output(call.usage)):
            self._usage[answer.key] = call.usage

    def once(self, file: str, entries: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
        """The entries of a file without calls whose answers others keep, and a notice about them.
        A file that was not added yet is added first."""
        if file not in self._files:
            entries = [*entries]
            self.add_all(file, entries)
        seen = self._counted.setdefault(file, set())
        repeated: dict[str, int] = {}
        for entry in entries:
            if isinstance(entry, Problem) or not entry.answers:
                yield entry
                continue
            kept = self._kept(file, entry, seen, repeated)
            if kept.trace.calls:
                yield kept
        for keeper, number in repeated.items():
            where = (
                "this file: counted once" if keeper == file else f"{keeper}: counted once, there"
            )
            reason = f"{counted(number, 'answer')} repeated from {where}"
            yield Problem(file, reason, "notice")

    def _kept(
        self, file: str, found: FoundTrace, seen: set[bytes], repeated: dict[str, int]
    ) -> FoundTrace:
        calls: list[TraceCall] = []
        answers: list[Answer] = []
        left: _BeganBy | None = None
        before: TraceCall | None = None
        for answer, call in zip(found.answers, found.trace.calls, strict=True):
            keeper = self.keeper(answer)
            if keeper.file != file or answer.key in seen:
                repeated[keeper.file] = repeated.get(keeper.file, 0) + 1
                left = "resume" if keeper.is_last else "fork"
                before = before if calls else call
                continue
            seen.add(answer.key)
            usage = self._usage.get(answer.key, call.usage)
            began_by = call.began_by or left
            if usage is not call.usage or began_by != call.began_by:
                call = replace(call, usage=usage, began_by=began_by)
            calls.append(call)
            answers.append(answer)
            left = None
        trace = replace(found.trace, calls=tuple(calls), before=before)
        return found._replace(trace=trace, answers=tuple(answers))

    def keeper(self, answer: Answer) -> AnswerCopy:
        """The copy that counts of an answer that was added."""
        if (elsewhere := self._elsewhere.get(answer.key)) is not None:
            return elsewhere
        keys = (answer.key, answer.untimed if answer.copied else b"")
        return min((self._first(key) for key in keys if key), key=self._rank)

    def _first(self, key: bytes) -> AnswerCopy:
        keeper = self._keepers.get(key)
        if keeper is None:
            keeper = self._keepers[key] = min(self._copies[key], key=self._rank)
        return keeper

    def _rank(self, copy: AnswerCopy) -> tuple[bool, float, float, int]:
        """Sort key: files that are not copies come first, whatever their times are."""
        times = self._files[copy.file]
        return copy.copied, times.began, times.ended, times.number


def _output(usage: TraceUsage) -> int:
    return usage.output or 0
