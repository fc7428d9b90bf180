"""Tools from Python functions: signature, type hints and docstring are the definition."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidJson, InvalidTool

from .schema import StructArguments, subschemas, tool_schema
from .times import add_time_formats

_REFUSED_KINDS: dict[Any, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only; models name their arguments, drop `/`",
    inspect.Parameter.VAR_POSITIONAL: "collects positional arguments; take a list instead",
    inspect.Parameter.VAR_KEYWORD: "collects keyword arguments; take a dict instead",
}


#: Kept because reading a function takes a millisecond, and `complete(…, tools=[function])` may be
#: called often.
_SPECS: WeakKeyDictionary[Callable[..., Any], FunctionSpec] = WeakKeyDictionary()


class FunctionSpec(msgspec.Struct, frozen=True):
    """A function's definition, and the decoder of its arguments."""

    name: str
    description: str
    schema: str
    arguments: StructArguments


def function_tool(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> FunctionSpec:
    """Name, description and schema of a function; `InvalidTool` names an unusable parameter.

    Descriptions of parameters come from `Annotated[int, msgspec.Meta(description="…")]`, else from
    `Annotated[int, "…"]`, else from the docstring (Google, NumPy or Sphinx style). A default that
    JSON can hold is in the schema; any other only makes the parameter optional. Arguments set by a
    `functools.partial` are not parameters.
    """
    if name is not None or description is not None or not inspect.isfunction(function):
        return _function_tool(function, name, description)
    spec = _SPECS.get(function)
    if spec is None:
        spec = _SPECS[function] = _function_tool(function, name, description)
    return spec


def _function_tool(
    function: Callable[..., Any], name: str | None, description: str | None
) -> FunctionSpec:
    if inspect.isclass(function):
        raise InvalidTool(f"{function.__name__} is a class; a tool is made from a function")
    if not callable(function):
        raise InvalidTool(f"must be a function or a Tool, not {type(function).__name__}")
    name = str(name or getattr(_without_partials(function), "__name__", "<lambda>"))
    if name == "<lambda>":
        is_lambda = inspect.isfunction(_without_partials(function))
        kind = "a lambda" if is_lambda else f"a {type(function).__name__}"
        raise InvalidTool(
            f"{kind} has no name for the model; define a function with def, or use"
            ' ToolRegistry.add(function, name="…")',
            path="name",
        )
    target = _annotated_part(function)
    documented, about = _read_docstring(target)
    parameters = _parameters(function, target, name, about)
    schema = _schema_of(parameters, name, about)
    return FunctionSpec(
        name=name,
        description=documented if description is None else description,
        schema=tool_schema(schema, path=f"tools.{name}.schema"),
        arguments=StructArguments(
            _struct_of(parameters), choices=_choices(schema), dec_hook=_model_of
        ),
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine, for functions, partials and callable objects."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _annotated_part(function: Callable[..., Any]) -> Any:
    """The function with the hints and docstring, inside partials and callable objects."""
    function = _without_partials(function)
    if inspect.isroutine(function):
        return inspect.unwrap(function)
    return inspect.unwrap(type(function).__call__)


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _read_docstring(target: Any) -> tuple[str, dict[str, str]]:
    # Python 3.13 strips indentation when it compiles; cleandoc makes older versions agree.
    text = inspect.cleandoc(target.__doc__ or "")
    if not text:
        return "", {}
    import docstring_parser  # loaded on first use

    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    about = {item.arg_name: (item.description or "").strip() for item in parsed.params}
    return (parsed.description or "").strip(), about


def _parameters(
    function: Callable[..., Any], target: Any, name: str, about: dict[str, str]
) -> list[inspect.Parameter]:
    """The parameters with resolved annotations; texts in these replace descriptions in `about`."""
    parameters = []
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidTool(f"has no signature to read: {error}", path=name) from None
    # Nested partials are one: Python flattens them.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    open_parameters = [each for each in signature.parameters.values() if each.name not in bound]
    hints = _hints(target, name, [parameter.name for parameter in open_parameters])
    for parameter in open_parameters:
        path, subject = f"{name}.{parameter.name}", f"parameter `{parameter.name}`"
        if refusal := _REFUSED_KINDS.get(parameter.kind):
            raise InvalidTool(f"{subject} {refusal}", path=path)
        if parameter.name not in hints:
            example = f"`{parameter.name}: str`"
            raise InvalidTool(f"{subject} has no type hint; add one, e.g. {example}", path=path)
        hint = hints[parameter.name]
        texts = [text for text in getattr(hint, "__metadata__", ()) if isinstance(text, str)]
        if any(texts[:1]):
            about[parameter.name] = texts[0]
        if parameter.default is None and not _takes_none(hint):
            hint = hint | None  # `limit: int = None`
        try:
            msgspec.json.schema(hint, schema_hook=_model_schema)
            msgspec.json.Decoder(hint)
        except (TypeError, ValueError) as error:
            raise InvalidTool(
                f"{subject} has a type without a JSON form: {str(error).splitlines()[-1]}; "
                "use JSON types, enums, Literal, dataclasses, TypedDict, msgspec.Struct or"
                " pydantic models",
                path=path,
            ) from None
        parameters.append(parameter.replace(annotation=hint))
    return parameters


def _hints(target: Any, name: str, parameters: typing.Iterable[str]) -> dict[str, Any]:
    wanted = set(parameters)
    try:
        annotations = getattr(target, "__annotations__", {})
        written = {key: hint for key, hint in annotations.items() if key in wanted}
        # Without the return hint, which may only exist for type checkers.
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__=written),
            globalns=getattr(target, "__globals__", {}),
            include_extras=True,
        )
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidTool(
            f"a type hint cannot be resolved: {error}; define or import it at module level, "
            "not under TYPE_CHECKING",
            path=name,
        ) from None


def _takes_none(hint: Any) -> bool:
    while typing.get_origin(hint) is typing.Annotated:
        hint = hint.__origin__
    return hint in (Any, None, types.NoneType) or types.NoneType in typing.get_args(hint)


def _schema_of(
    parameters: list[inspect.Parameter], name: str, about: dict[str, str]
) -> dict[str, Any]:
    hints = [parameter.annotation for parameter in parameters]
    try:
        schemas, components = msgspec.json.schema_components(hints, schema_hook=_model_schema)
        for hint, schema in zip(hints, schemas, strict=True):
            add_time_formats(hint, schema, components)
        _lift_definitions([*schemas, *components.values()], components)
    except KeyError as error:
        raise InvalidTool(f"two types are both called {error}; rename one", path=name) from None
    properties, required = {}, []
    for parameter, schema in zip(parameters, schemas, strict=True):
        if about.get(parameter.name):
            schema.setdefault("description", about[parameter.name])
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
            continue
        with contextlib.suppress(InvalidJson):  # it only makes the parameter optional
            default = plain(parameter.default)
            canonical.dumps(default)
            schema["default"] = default
    for component in components.values():
        _tidy(component, components)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **({"$defs": components} if components else {}),
    }


def _tidy(component: dict[str, Any], components: dict[str, Any]) -> None:
    """Remove the title, and make the parts that msgspec took from a class deterministic."""
    component.pop("title", None)
    if "description" in component:
        component["description"] = inspect.cleandoc(component["description"])
    fields = [*component.get("properties", {}).values(), *component.get("prefixItems", ())]
    for field in fields:
        if "default" in field:
            field["default"] = _sort_sets(field["default"], field, components)


def _sort_sets(value: Any, schema: dict[str, Any], components: dict[str, Any]) -> Any:
    """Sort the sets in a default, which msgspec wrote in hash order; the schema marks them."""
    if "$ref" in schema:
        schema = components[schema["$ref"].removeprefix("#/$defs/")]
    for branch in schema.get("anyOf", ()):
        value = _sort_sets(value, branch, components)
    if isinstance(value, dict):
        others = schema.get("additionalProperties") or {}
        kinds = schema.get("properties", {})
        return {
            key: _sort_sets(item, kinds.get(key, others), components) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        others = schema.get("items") or {}
        kinds = [*schema.get("prefixItems", ()), *[others] * len(value)]
        value = [_sort_sets(*pair, components) for pair in zip(value, kinds, strict=False)]
        if schema.get("uniqueItems"):
            value.sort(key=msgspec.json.encode)
    return value


def _choices(schema: dict[str, Any]) -> dict[str, list[Any]]:
    """The allowed values of enum parameters, for error messages to the model."""
    choices = {}
    for name, field in schema["properties"].items():
        for branch in (field, *field.get("anyOf", ())):
            component = branch.get("$ref", "").removeprefix("#/$defs/")
            found = branch if not component else schema["$defs"][component]
            if "enum" in found:
                choices[name] = found["enum"]
    return choices


def _struct_of(parameters: list[inspect.Parameter]) -> type[msgspec.Struct]:
    # Unset rather than the default: the function applies its own.
    fields = [
        (item.name, item.annotation, *(() if item.default is item.empty else (msgspec.UNSET,)))
        for item in parameters
    ]
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def plain(value: object, *, path: str = "$") -> Any:
    """A Python value as plain JSON data, the same under every PYTHONHASHSEED.

    Dictionaries keep their order; inside structs and dataclasses msgspec sorts them. Sets are
    sorted by their JSON text. Numbers and strings are not checked; `canonical.dumps` does that.
    """
    if isinstance(value, dict):
        return {_key(key): plain(item, path=f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, path=f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, path=path) for item in value), key=msgspec.json.encode)
    if type(value) in (str, int, float, bool):
        return value
    try:
        return msgspec.to_builtins(
            value, order="deterministic", str_keys=True, enc_hook=_model_fields
        )
    except (TypeError, ValueError) as error:
        raise InvalidJson(f"{type(value).__name__} has no JSON form: {error}", path=path) from None


def _key(key: object) -> object:
    """Numbers become strings, as in `json.dumps`; the encoder refuses every other key."""
    return str(key) if isinstance(key, int) and not isinstance(key, bool) else key


# ── pydantic models, without importing pydantic ───────────────────────────────────────────────────


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def _model_schema(kind: Any) -> dict[str, Any]:
    if not _is_model(kind):
        raise NotImplementedError
    try:
        schema: dict[str, Any] = kind.model_json_schema()
    except RuntimeError as error:  # PydanticUserError is one
        reason = (str(error).splitlines() or [""])[0]
        raise TypeError(f"{kind.__name__}: {reason}") from None
    for each in subschemas(schema):
        each.pop("title", None)
    if "$ref" in schema:  # of a recursive model
        return schema
    # As a definition, like a struct: the parameter has its own description.
    name = re.sub(r"[^a-zA-Z0-9._-]", "_", kind.__name__)
    definitions = schema.pop("$defs", {})
    return {"$ref": f"#/$defs/{name}", "$defs": {**definitions, name: schema}}


def _lift_definitions(schemas: list[dict[str, Any]], components: dict[str, Any]) -> None:
    """Move the definitions of pydantic models to those of the tool."""
    for schema in schemas:
        for each in subschemas(schema):
            for name, definition in each.pop("$defs", {}).items():
                if components.setdefault(name, definition) != definition:
                    raise KeyError(name)


def _model_of(kind: Any, value: Any) -> Any:
    """Validate an argument. Messages of validators are for the model; values are not quoted."""
    if not _is_model(kind):
        return value  # msgspec refuses what is not an instance
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except Exception as error:
        if not hasattr(error, "errors"):
            raise ValueError(f"validation raised {type(error).__name__}") from None
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    raise ValueError(f"{place}: {first['msg']}" if place else first["msg"])


def _model_fields(value: Any) -> Any:
    if not _is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return value.model_dump(mode="json", by_alias=True)
