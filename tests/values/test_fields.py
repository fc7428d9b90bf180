"""Values hold what their fields declare, and cannot be changed: whatever was given."""

from __future__ import annotations

import copy
import enum
import functools
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from support.tables import each_row, table

from anaphora import errors
from anaphora.prompt import Call, Params, PromptBlock, PromptIR, RenderedContext, Segment
from anaphora.values import (
    Conversation,
    Message,
    Notice,
    SegmentRole,
    Text,
    Tool,
    ToolResult,
    Usage,
    from_json,
    to_json,
)
from anaphora.values.fields import FrozenDict, Value


def every_class(base: type = Value) -> Iterator[type[msgspec.Struct]]:
    kinds: list[Any] = base.__subclasses__()
    for kind in kinds:
        if kind.__module__.startswith(("anaphora.values", "anaphora.prompt")):
            yield from every_class(kind)
            if not kind.__name__.startswith("_"):
                yield kind


CLASSES: list[Any] = [*every_class(), RenderedContext]
FIELDS = [(kind, name) for kind in CLASSES for name in kind.__struct_fields__]
FIELD_ROWS = [(f"{kind.__name__}.{name}", (kind, name)) for kind, name in FIELDS]


class Word(str):
    __slots__ = ()


class Number(int):
    pass


class Name(enum.StrEnum):
    A = "a"


def example(hint: Any) -> Any:
    """A value of the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        return example(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return (example(arguments[0]),)
    if origin is not None and issubclass(origin, Mapping):
        return {example(arguments[0]): example(arguments[1])}
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    if issubclass(hint, msgspec.Struct):
        return made(hint)
    known: dict[type, Any] = {
        str: "text",
        int: 3,
        float: 0.5,
        bool: True,
        bytes: b"data",
        types.NoneType: None,
        Conversation: Conversation([Message.user("Hello?")]),
    }
    return known[hint]


def new(make: Any, *args: Any, **fields: Any) -> Any:
    """A call that no type checker sees."""
    return make(*args, **fields)


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)  # with class variables
    return {name: hints[name] for name in kind.__struct_fields__}  # type: ignore[attr-defined]


def made(kind: type, /, **fields: Any) -> Any:
    """An instance with every field set."""
    hints = hints_of(kind)
    return kind(**{name: example(hint) for name, hint in hints.items()} | fields)


def members(hint: Any) -> tuple[Any, ...]:
    is_union = get_origin(hint) in (Union, types.UnionType)
    return get_args(hint) if is_union else (hint,)


#: Values of which at least most are of the wrong type, in whichever field.
FOREIGN: list[Any] = [1, 1.0, True, "text", b"data", None, object(), [1], {"a": 1}, {1: "a"}, {"a"}]


def belongs(value: Any, hint: Any) -> bool:
    """Whether a value may be given for a type, by another definition than the one under test."""
    origin, arguments = get_origin(hint), get_args(hint)
    if len(members(hint)) > 1:
        return any(belongs(value, each) for each in members(hint))
    if origin is Literal:
        return type(value) is str and value in arguments
    if origin is tuple:
        return isinstance(value, list) and all(belongs(each, arguments[0]) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(
            belongs(key, arguments[0]) and belongs(each, arguments[1])
            for key, each in value.items()
        )
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


@table(FIELD_ROWS)
def test_field_of_another_type_is_refused_by_name(kind: type, name: str) -> None:
    hint = hints_of(kind)[name]
    refused = 0
    for value in FOREIGN:
        if belongs(value, hint):
            made(kind, **{name: value})
            continue
        refused += 1
        with pytest.raises(errors.InvalidRequest) as caught:
            made(kind, **{name: value})
        assert caught.value.path.startswith(f"{kind.__name__}.{name}")
        assert "must be" in str(caught.value)
    assert refused >= 5


@each_row("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_values_are_equal_hashable_and_the_same_after_every_copy(kind: type) -> None:
    value, again = made(kind), made(kind)
    assert value == again
    assert from_json(to_json(value), kind) == value
    assert copy.deepcopy(value) == copy.copy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value
    if kind not in (Call, PromptIR, Segment, RenderedContext):  # they hold a `Conversation`
        assert hash(value) == hash(again)


@table(FIELD_ROWS)
def test_what_was_given_may_change_later(kind: type, name: str) -> None:
    """Lists and dictionaries are copied: to change them does not change the value."""
    for hint in members(hints_of(kind)[name]):
        given = example(hint)
        given = list(given) if isinstance(given, tuple) else given
        if not isinstance(given, list | dict):
            continue
        value = made(kind, **{name: given})
        before, encoded = copy.deepcopy(getattr(value, name)), to_json(value)
        given.clear()
        assert getattr(value, name) == before
        assert to_json(value) == encoded
        assert isinstance(getattr(value, name), tuple | FrozenDict)


@each_row(
    "change",
    [
        lambda extras: extras.update(a="x"),
        lambda extras: extras.clear(),
        lambda extras: extras.pop("a"),
        lambda extras: extras.popitem(),
        lambda extras: extras.setdefault("b", "x"),
        lambda extras: extras.__setitem__("a", "x"),
        lambda extras: extras.__delitem__("a"),
        lambda extras: extras.__ior__({"a": "x"}),
    ],
)
def test_extras_cannot_be_changed(change: Any) -> None:
    tool = Tool("f", extras={"a": "{}"})
    with pytest.raises(TypeError, match="cannot be changed"):
        change(tool.extras)
    assert tool.extras == {"a": "{}"}


def test_subclasses_become_the_values_they_hold() -> None:
    text = Text(Word("a"), extras={Word("w"): Name.A})
    assert type(text.text) is str
    assert [type(each) for pair in (text.extras or {}).items() for each in pair] == [str, str]
    params = new(Params, max_tokens=Number(5), temperature=Number(1), stop=[Word("a")])
    assert (type(params.max_tokens), type(params.temperature)) == (int, int)
    assert [type(each) for each in params.stop] == [str]
    assert type(new(Message, role=Word("user"), parts=()).role) is str


def test_values_that_compare_equal_are_not_given_for_each_other() -> None:
    """`True`, `1` and `1.0` are equal as keys, and different bytes."""
    makers: list[Callable[[], object]] = [
        lambda: new(Tool, "f", strict=1),
        lambda: new(Params, max_tokens=True),
        lambda: new(Params, max_tokens=1.0),
        lambda: new(Params, temperature=True),
        lambda: new(Params, store=1),
        lambda: new(ToolResult, "c", error=1),
        lambda: new(Usage, read=True),
    ]
    for make in makers:
        with pytest.raises(errors.InvalidRequest):
            make()
    assert to_json(Params(temperature=1)) != to_json(Params(temperature=1.0))


@each_row(
    "make, message",
    [
        (lambda: new(Tool, "f", strict=1), "Tool.strict: must be a bool, not int"),
        (lambda: new(Params, stop="END"), "Params.stop: must be a tuple or a list, not 'END'"),
        (lambda: new(Params, metadata={"a": 1}), "Params.metadata['a']: must be a str, not int"),
        (lambda: new(PromptBlock, "a", None), "PromptBlock.text: must be a str, not None"),
        (
            lambda: new(Message, role="usr", parts=()),
            "Message.role: must be one of 'system', 'user',",
        ),
        (
            lambda: new(Params, output="JSON"),
            "Params.output: must be an OutputSchema or 'json', not 'JSON'",
        ),
        (
            lambda: new(Message, role="user", parts=["a"]),
            "Message.parts[0]: must be a Text, an Image,",
        ),
        (lambda: new(Message.user, 5), "Message.parts[0]: must be a Text, an Image,"),
        (lambda: new(Conversation, ["a"]), "messages[0]: must be a Message or a dict, not str"),
        (lambda: new(Conversation).append(5), "messages[0]: must be a Message or a dict, not int"),
        (
            lambda: new(Segment.of, SegmentRole.CONVERSATION, Text("a")),
            "messages[0]: must be a Message or a dict, not Text",
        ),
        (
            lambda: new(ToolResult, "c", [Text("a"), "b"]),
            "ToolResult.content[1]: must be a Text, an Image,",
        ),
    ],
)
def test_error_names_the_field_and_what_is_right(make: Any, message: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_usual_values_are_not_copied() -> None:
    parts = (Text("a"), Text("b"))
    assert Message(role="user", parts=parts).parts is parts
    extras = Tool("f", extras={"a": "{}"}).extras
    assert Text("a", extras=extras).extras is extras
    checked = Text("a", extras={"a": "{}"}).extras
    assert Text("b", extras=checked).extras is checked
    assert Notice("code", "message").path == ""
