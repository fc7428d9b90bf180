"""Views of a call: one small function for each feature, to compare calls with.

Calls that ask for the same thing have equal views, however a wire splits or orders the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from anaphora.prompt import Call, OutputSchema
from anaphora.values import Part, ProviderTool, Text, Tool, ToolResult, Url

View: TypeAlias = Callable[[Call], Any]


def param(path: str) -> View:
    def view(call: Call) -> Any:
        found: Any = call.params
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        return found

    return view


def mode(call: Call) -> str:
    """The mode of the tool choice; `auto` is the default everywhere."""
    return call.params.tool_choice.mode if call.params.tool_choice is not None else "auto"


def name_of_schema(call: Call) -> str | None:
    """The name that the caller gave the schema; None for the default name."""
    output = call.params.output
    if not isinstance(output, OutputSchema) or output == OutputSchema(output.schema):
        return None
    return output.name


def parts_of(call: Call) -> list[Part]:
    """All parts in order; the parts of a tool result follow it."""
    found: list[Part] = []
    for message in call.ir.body_chat():
        for part in message.parts:
            found.append(part)
            if isinstance(part, ToolResult) and not isinstance(part.content, str):
                found += part.content
    return found


def _own(found: list[Any], *fields: str) -> list[Any]:
    return [tuple(getattr(part, field) for field in fields) for part in found]


def parts(kind: type, *fields: str) -> View:
    return lambda call: _own([part for part in parts_of(call) if isinstance(part, kind)], *fields)


def sources(kind: type) -> View:
    """The sources of media, without the guessed media type of a URL."""

    def view(call: Call) -> Any:
        found = [getattr(part, "source", None) for part in parts_of(call) if isinstance(part, kind)]
        return [source.url if isinstance(source, Url) else source for source in found]

    return view


def inside_results(kind: type) -> View:
    def view(call: Call) -> Any:
        answers = [part for part in parts_of(call) if isinstance(part, ToolResult)]
        inner = [part.content for part in answers if not isinstance(part.content, str)]
        found = [part for content in inner for part in content if isinstance(part, kind)]
        return _own(found, "source")

    return view


def results(call: Call) -> Any:
    """The call id and the joined text of each tool result."""
    answers = [part for part in parts_of(call) if isinstance(part, ToolResult)]
    return [
        (part.call_id, part.content if isinstance(part.content, str) else _joined(part.content))
        for part in answers
    ]


def _joined(content: tuple[Any, ...]) -> str:
    return "".join(part.text for part in content if isinstance(part, Text))


def roles_of(text: str) -> View:
    """The role and the kind of part with this text."""

    def view(call: Call) -> Any:
        return [
            (message.role, type(part).__name__)
            for message in call.ir.body_chat()
            for part in message.parts
            if getattr(part, "text", None) == text
        ]

    return view


def cache(name: str) -> View:
    return lambda call: getattr(call.ir.cache, name)


def compares(call: Call) -> str | None:
    earlier = call.ir.cache.compare_with
    return None if earlier is None else earlier.id


def marks(call: Call) -> Any:
    return [(type(mark).__name__, mark.ttl) for mark in call.ir.cache.marks]


def tools(*fields: str) -> View:
    return lambda call: _own([tool for tool in call.tools if isinstance(tool, Tool)], *fields)


def provider_tools(call: Call) -> Any:
    return [tool.json for tool in call.tools if isinstance(tool, ProviderTool)]


def extras_of_parts(call: Call) -> Any:
    """The extras of the texts, without a wire's notes on its own format."""
    every = [part.extras or {} for part in parts_of(call) if isinstance(part, Text)]
    return [{k: v for k, v in extras.items() if "." not in k} for extras in every]


def extras(call: Call) -> Any:
    return {name: text for name, text in (call.extras or {}).items() if "." not in name}
