"""The JSON encoder: its output, and the values that it rejects."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import canonical
from anaphora.errors import InvalidJson
from anaphora.values.codec import check_object, is_object, loads


@each_row(
    "value, data",
    [
        (None, b"null"),
        (True, b"true"),
        (0, b"0"),
        (-7, b"-7"),
        (2**64, b"18446744073709551616"),
        (-(2**70), b"-1180591620717411303424"),
        (0.1, b"0.1"),
        (1.0, b"1.0"),
        (1e-7, b"1e-7"),
        ("", b'""'),
        # UTF-8 as it is; only what JSON demands is escaped.
        ("é日🙂", '"é日🙂"'.encode()),
        ('"\\/', b'"\\"\\\\/"'),
        ("\n\t\x00\x1f", b'"\\n\\t\\u0000\\u001f"'),
        ("\x7f\u2028", '"\x7f\u2028"'.encode()),
        # No spaces, keys in the order they have.
        ([], b"[]"),
        ((1, [2]), b"[1,[2]]"),
        ({}, b"{}"),
        ({"b": 1, "a": {"d": 2, "c": 3}}, b'{"b":1,"a":{"d":2,"c":3}}'),
        ({"": 1, "é": 2}, '{"":1,"é":2}'.encode()),
    ],
)
def test_a_value_is_written_like_this(value: object, data: bytes) -> None:
    assert canonical.dumps(value) == data
    assert loads(data) == (list(value) if isinstance(value, tuple) else value)


class Colour(enum.Enum):
    RED = "red"


@each_row(
    "value, path",
    [
        (float("nan"), "$"),
        (float("inf"), "$"),
        ({"a": [1, float("-inf")]}, "$.a[1]"),
        ({"a": {"b": float("nan")}}, "$.a.b"),
        ("\ud800", "$"),
        ({"a": ["fine", {"b": "x\udfffy"}]}, "$.a[1].b"),
        ({"a": {"\ud800": 1}}, "$.a.\ud800"),
        ({1: 2}, "$"),
        ({"a": {None: 2}}, "$.a"),
        ({"a": b"bytes"}, "$.a"),
        ([{1, 2}], "$[0]"),
        ([object()], "$[0]"),
        (Colour.RED, "$"),
        ([1 + 2j], "$[0]"),
    ],
)
def test_invalid_values_are_rejected_with_their_path(value: object, path: str) -> None:
    """Never written as null, never as something near it."""
    with pytest.raises(InvalidJson) as caught:
        canonical.dumps(value)
    assert caught.value.path == path


def test_path_starts_with_the_given_prefix() -> None:
    with pytest.raises(InvalidJson) as caught:
        canonical.dumps({"a": [float("nan")]}, path="params.metadata")
    assert caught.value.path == "params.metadata.a[0]"


def test_a_lone_surrogate_is_named_by_code_and_place() -> None:
    with pytest.raises(InvalidJson, match=r"U\+DC00 at character 2"):
        canonical.string("ab\udc00")


@pytest.mark.parametrize("text", ["{}", ' {"a" : 1} ', '{"a":1,"a":2}', '{"é":[1,{"b":null}]}'])
def test_object_text_is_returned_unchanged(text: str) -> None:
    assert check_object(text) is text
    assert is_object(text)


@each_row(
    "text",
    [
        "",
        " ",
        "null",
        "[1]",
        '"{}"',
        "{",
        "{} {}",
        '{"a":1,}',
        "{'a':1}",
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":01}',
        '{"a":1.}',
        '{"a":tru}',
        '{"a":"\\x"}',
        '{"a":"\\ud800"}',
        '{"a":"\n"}',
        '{"a":"\ud800"}',
        '{"\\x":1}',
        '{"a":[{"b":"\\u12"}]}',
    ],
)
def test_non_objects_are_rejected(text: str) -> None:
    """All of it is read, however deep: it goes into a request as it is."""
    assert not is_object(text)
    with pytest.raises(InvalidJson) as caught:
        check_object(text, path="tools[0].schema")
    assert caught.value.path == "tools[0].schema"


@each_row("text", ["", "{", "nope", "1 2", "\ud800"])
def test_invalid_json_is_rejected(text: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        loads(text, path="here")
    assert caught.value.path == "here"


def test_bytes_that_are_no_utf8_are_no_json() -> None:
    with pytest.raises(InvalidJson):
        loads(b'"\xff"')


plain: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_other_decoders_read_the_same(value: Any) -> None:
    data = canonical.dumps(value)
    assert json.loads(data) == value
    assert list(json.loads(data)) == list(value) if isinstance(value, dict) else True
    assert canonical.dumps(loads(data)) == data


@given(st.text())
def test_string_is_dumps_for_text(text: str) -> None:
    assert canonical.string(text) == canonical.dumps(text)
    assert json.loads(canonical.string(text)) == text
