"""What a tool answered, as an item: its output stays open, so that a breakpoint finds its end."""

from __future__ import annotations

from collections.abc import Sequence

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.values import Notice, ResultPart, Text, ToolResult

from .content import INPUT, WIRE, Notices, markable, members


def function_call_output(part: ToolResult, notices: Notices) -> tuple[bytes, bool]:
    """All but the closing brackets, and whether its end may carry a breakpoint."""
    if part.error:
        notices.append(
            Notice("error_unsupported", "OpenAI has no error flag on tool outputs; left out")
        )
    parts = as_parts(part)
    output = _output(parts, notices)
    last = _last(output)
    return output_opening(part) + _joined(output), last is not None and markable(parts[last])


def as_parts(part: ToolResult) -> tuple[ResultPart, ...]:
    return (Text(part.content),) if isinstance(part.content, str) else part.content


def last_said(part: ToolResult) -> int | None:
    """The part that a tool's output ends with, which is where the chunk's own breakpoint goes."""
    return _last(_output(as_parts(part), []))


def nested_splice(part: ToolResult, index: int) -> int | None:
    """Where in the output of a tool a breakpoint for its part `index` goes."""
    inner = as_parts(part)
    if not 0 <= index < len(inner) or not markable(inner[index]):
        return None
    *_, last = said = _output(inner[: index + 1], [])
    if last is None:
        return None
    return len(output_opening(part)) + len(_joined(said)) - 1


def output_opening(part: ToolResult) -> bytes:
    """The item up to the first part of its output."""
    more = members(part.extras, WIRE)
    return (
        b'{"type":"function_call_output","call_id":'
        + string(part.call_id)
        + (b"," + more if more else b"")
        + b',"output":['
    )


def _output(parts: Sequence[ResultPart], notices: Notices) -> list[bytes | None]:
    said: list[bytes | None] = []
    for index, part in enumerate(parts):
        if type(part) not in INPUT:
            raise InvalidRequest(
                f"{type(part).__name__} may not stand inside a tool result",
                path=f"content[{index}]",
            )
        try:
            said.append(INPUT[type(part)][1](part, notices))
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
    return said


def _joined(output: list[bytes | None]) -> bytes:
    return b",".join(data for data in output if data is not None)


def _last(output: list[bytes | None]) -> int | None:
    return next((at for at in reversed(range(len(output))) if output[at] is not None), None)
