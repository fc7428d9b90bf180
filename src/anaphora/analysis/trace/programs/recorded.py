"""Shared by the readers of several programs: conversations of one provider, and providers by the
names that programs use."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import Answer, BranchBudget, FoundTrace, TraceEntry

#: Services that forward calls to the makers of the models.
_RESELLERS = ("", "github-copilot", "github-copilot-enterprise", "opencode", "openai-codex")
#: Providers whose writes are kept for half an hour; others keep them for 5 minutes.
_HALF_HOUR = ("openai", "azure")


def served_by(provider: object, model: object) -> tuple[str, str]:
    """The catalog's provider and model, by the names that a program uses; its own names if
    they are not known."""
    name, model = (str(one) if isinstance(one, str) else "" for one in (provider, model))
    known = catalog.provider_named(name) if name else None
    maker = catalog.maker_of(model) if name in _RESELLERS else None
    if known is None and maker is not None:
        dashed = model.replace(".", "-")  # GitHub writes versions of Claude with a dot
        return maker, dashed if catalog.profile(maker, dashed).known else model
    return known or name, model


def usage_of(
    provider: str,
    *,
    uncached: int,
    read: int = 0,
    written: int = 0,
    written_1h: int = 0,
    output: int | None = None,
    reasoning: int | None = None,
) -> TraceUsage | None:
    """A bill; None if nothing was counted."""
    if uncached < 0 or written < written_1h:
        total = uncached + read + written
        raise ValueError(f"{read} read and {written} written of {total} input tokens")
    half_hour = provider in _HALF_HOUR
    usage = TraceUsage(
        input=uncached,
        cache_read=read,
        cache_write_5m=0 if half_hour else written - written_1h,
        cache_write_30m=written - written_1h if half_hour else 0,
        cache_write_1h=written_1h,
        output=output,
        reasoning=reasoning,
    )
    return usage if usage.total else None


class Recorded(msgspec.Struct):
    """One conversation while it is read."""

    place: str
    provider: str = ""
    model: str = ""
    messages: list[TraceMessage] = []
    calls: list[TraceCall] = []
    answers: list[Answer] = []

    def bill(self, call: TraceCall, answer: Answer, provider: str, model: str, place: str) -> None:
        """A call of this conversation to a model of the same provider."""
        if not self.calls:
            self.provider, self.model, self.place = provider, model, place
        elif model != self.model:
            call = msgspec.structs.replace(call, model=model)
        self.calls.append(call)
        self.answers.append(answer)

    def found(self, id: str, group: str, source: str) -> FoundTrace:
        """The conversation, its calls sorted: a bill may come after those of later calls."""
        pairs = zip(self.calls, self.answers, strict=True)
        calls, answers = zip(*sorted(pairs, key=lambda pair: pair[0].messages), strict=True)
        trace = Trace(
            id=id,
            provider=self.provider,
            model=self.model,
            calls=calls,
            messages=tuple(self.messages),
            group=group,
            source=source,
            system_tokens_unknown=True,
        )
        return FoundTrace(self.place, trace, answers)


class RecordedSession:
    """The conversations of one session, one after the other: a new one begins when the history is
    replaced or another provider answers."""

    def __init__(self) -> None:
        self.done: list[Recorded] = []
        self.current = Recorded("")
        self.began_by: Any = None
        """What happened since the last call."""
        self._branches = BranchBudget()

    @property
    def messages(self) -> list[TraceMessage]:
        return self.current.messages

    def add(self, message: TraceMessage) -> None:
        self.current.messages.append(message)
        self._branches.add(1)

    def restart(self, messages: list[TraceMessage], began_by: str) -> None:
        """Starts a conversation with another history."""
        self._close(messages)
        self.began_by = began_by

    def bill(self, call: TraceCall, answer: Answer, served: tuple[str, str], place: str) -> None:
        provider, model = served
        if self.current.calls and self.current.provider != provider:
            self._close([*self.current.messages])
        if self.began_by is not None:
            call = msgspec.structs.replace(call, began_by=self.began_by)
            self.began_by = None
        self.current.bill(call, answer, provider, model, place)

    def side_call(
        self, call: TraceCall, answer: Answer, served: tuple[str, str], place: str
    ) -> None:
        """A call that is billed, but whose messages are not recorded."""
        alone = Recorded("")
        alone.bill(call, answer, *served, place)
        self.done.append(alone)

    def found(self, id: str, source: str, group: str, file: str) -> list[TraceEntry]:
        billed = [one for one in (*self.done, self.current) if one.calls]
        found = (one.found(f"{id}#{index}", group, source) for index, one in enumerate(billed))
        return [*found, *self._branches.problems(file)]

    def _close(self, messages: list[TraceMessage]) -> None:
        if self.current.calls and self._branches.take(len(self.current.messages)):
            self.done.append(self.current)
        self.current = Recorded("", messages=messages)
