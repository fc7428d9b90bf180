"""What is seen of a call: one small view for each thing that it may ask for.

Two calls that ask for the same look the same, however a wire has cut or ordered the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from anaphora.prompt import Call, OutputSchema
from anaphora.values import Part, ProviderTool, Text, Tool, ToolResult, Url

See: TypeAlias = Callable[[Call], Any]


def param(path: str) -> See:
    def see(call: Call) -> Any:
        found: Any = call.params
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        return found

    return see


def mode(call: Call) -> str:
    """Everywhere the model chooses where nobody says otherwise."""
    return call.params.tool_choice.mode if call.params.tool_choice is not None else "auto"


def name_of_schema(call: Call) -> str | None:
    """A name that somebody gave it, not the one that it has otherwise."""
    output = call.params.output
    return None if output is None or output == OutputSchema(output.schema) else output.name


def parts_of(call: Call) -> list[Part]:
    """All parts in the order they are said, those inside of tool results behind these."""
    found: list[Part] = []
    for message in call.ir.body_chat():
        for part in message.parts:
            found.append(part)
            if isinstance(part, ToolResult) and not isinstance(part.content, str):
                found += part.content
    return found


def _own(found: list[Any], *fields: str) -> list[Any]:
    return [tuple(getattr(part, field) for field in fields) for part in found]


def parts(kind: type, *fields: str) -> See:
    return lambda call: _own([part for part in parts_of(call) if isinstance(part, kind)], *fields)


def sources(kind: type) -> See:
    """Where media come from. What an address leads to may be guessed; it is no part of it."""

    def see(call: Call) -> Any:
        found = [getattr(part, "source", None) for part in parts_of(call) if isinstance(part, kind)]
        return [source.url if isinstance(source, Url) else source for source in found]

    return see


def inside_results(kind: type) -> See:
    def see(call: Call) -> Any:
        answers = [part for part in parts_of(call) if isinstance(part, ToolResult)]
        inner = [part.content for part in answers if not isinstance(part.content, str)]
        found = [part for content in inner for part in content if isinstance(part, kind)]
        return _own(found, "source")

    return see


def results(call: Call) -> Any:
    """Which call was answered with which text, however that is cut."""
    answers = [part for part in parts_of(call) if isinstance(part, ToolResult)]
    return [
        (part.call_id, part.content if isinstance(part.content, str) else _joined(part.content))
        for part in answers
    ]


def _joined(content: tuple[Any, ...]) -> str:
    return "".join(part.text for part in content if isinstance(part, Text))


def who_says(words: str) -> See:
    """In which role, and as which kind of part."""

    def see(call: Call) -> Any:
        return [
            (message.role, type(part).__name__)
            for message in call.ir.body_chat()
            for part in message.parts
            if getattr(part, "text", None) == words
        ]

    return see


def cache(name: str) -> See:
    return lambda call: getattr(call.ir.cache, name)


def compares(call: Call) -> str | None:
    earlier = call.ir.cache.compare_with
    return None if earlier is None else earlier.id


def marks(call: Call) -> Any:
    return [(type(mark).__name__, mark.ttl) for mark in call.ir.cache.marks]


def tools(*fields: str) -> See:
    return lambda call: _own([tool for tool in call.tools if isinstance(tool, Tool)], *fields)


def provider_tools(call: Call) -> Any:
    return [tool.json for tool in call.tools if isinstance(tool, ProviderTool)]


def extras_of_parts(call: Call) -> Any:
    """Of the texts, without the remarks of a wire on how it had put them."""
    all_of_them = [part.extras or {} for part in parts_of(call) if isinstance(part, Text)]
    return [{k: v for k, v in extras.items() if "." not in k} for extras in all_of_them]


def extras(call: Call) -> Any:
    return {name: text for name, text in (call.extras or {}).items() if "." not in name}
