"""Decoding and validating the arguments of tool calls.

Errors name the path (`arguments.filters[0].kind`) and what was expected; they never quote the
value, which is reply text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidRequest, InvalidTool

from .schema import first_error, mismatch, schema_validator

_ROOT = "arguments"
_FIELD = re.compile(r"^Object (?:missing required|contains unknown) field `(.+)`$", re.DOTALL)
_QUOTES_VALUE = re.compile(r"^Invalid (?:enum )?value ", re.DOTALL)


class Arguments(Protocol):
    """Reads the arguments of one tool."""

    def read(self, text: str) -> dict[str, Any]: ...


class StructArguments:
    """For functions: strict decoding into a struct, values converted to the hinted types."""

    def __init__(
        self,
        struct: type[msgspec.Struct],
        *,
        choices: dict[str, list[Any]],
        dec_hook: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._names = struct.__struct_fields__
        self._choices = choices
        self._decoder = msgspec.json.Decoder(struct, dec_hook=dec_hook)

    def read(self, text: str) -> dict[str, Any]:
        """The given arguments; the function has defaults for the others."""
        try:
            decoded = self._decoder.decode(_or_empty(text))
        except msgspec.ValidationError as error:
            raise self._explain(str(error)) from None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidRequest(f"not JSON: {error}", path=_ROOT) from None
        decoded_fields = ((name, getattr(decoded, name)) for name in self._names)
        return {name: value for name, value in decoded_fields if value is not msgspec.UNSET}

    def _explain(self, error: str) -> InvalidRequest:
        """msgspec writes "Expected `int`, got `str` - at `$.limit`"; the last "at" counts."""
        reason, _, where = error.rpartition(" - at `")
        if not reason:
            reason, where = error, "$`"
        if where.startswith("key` in `"):
            where = where.removeprefix("key` in `")
            reason = f"{reason} (in a key)"
        steps = where.removesuffix("`").removeprefix("$")
        path = _ROOT + steps
        if _QUOTES_VALUE.match(reason):
            choices = self._choices.get(steps.removeprefix("."))
            reason = f"expected one of {_listed(choices)}" if choices else "not an allowed value"
        elif field := _FIELD.match(reason):
            if path == _ROOT and field[1] not in self._names:
                reason = f"unknown field; known: {', '.join(self._names) or 'none'}"
            path = f"{path}.{field[1]}"
        return InvalidRequest(reason, path=path)


class SchemaArguments:
    """For schema and MCP tools: validated by the schema, passed on as plain JSON values."""

    def __init__(self, schema: str, *, path: str) -> None:
        self._schema = schema
        self._path = path

    def read(self, text: str) -> dict[str, Any]:
        arguments = canonical.loads(_or_empty(text), path=_ROOT)
        if not isinstance(arguments, dict):
            kind = type(arguments).__name__
            raise InvalidRequest(f"expected an object, got {kind}", path=_ROOT)
        if (error := first_error(self._validator, arguments)) is not None:
            reason, path = mismatch(error, None, _ROOT)
            raise InvalidRequest(reason, path=path)
        return arguments

    @functools.cached_property
    def _validator(self) -> Any:
        return schema_validator(self._schema, self._path, InvalidTool)


def _or_empty(text: str) -> str:
    """Some models write an empty text for a tool without arguments."""
    return text if text.strip() else "{}"


def _listed(values: list[Any]) -> str:
    return canonical.dumps(values).decode().removeprefix("[").removesuffix("]")
