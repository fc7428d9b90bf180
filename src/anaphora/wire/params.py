"""Parameters as a table, and the envelope around the prompt.

Each wire lists its parameters as `Param` rows. The rows encode a call's parameters into request
fields, decode a request's fields into parameters, and give notices for parameters without a field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from anaphora.canonical import dumps, string
from anaphora.catalog import Feature
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    Call,
    OutputFormat,
    OutputSchema,
    Params,
    PromptCachePlan,
    Reasoning,
    ToolChoice,
)
from anaphora.values import Extras, Notice
from anaphora.values.codec import check_object

from .parts import foreign_extras, merge_fields
from .reading import object_members, request_error

ANTHROPIC_TIERS = ("standard_only",)

#: Request fields by name; an object is a mapping of its members.
FieldTree: TypeAlias = "dict[str, bytes | FieldTree]"

#: The cache plan of a request without marks and cache options.
NO_CACHE_PLAN = PromptCachePlan()
_new_params = Params().__copy__  # type: ignore[attr-defined]
#: Decoded values of these types need no check.
_SCALARS = frozenset({int, float, str, bool})

PARAM_GROUPS: dict[str, Any] = {"tool_choice": ToolChoice, "reasoning": Reasoning}
#: The default name of a schema, which needs no notice.
_DEFAULT_NAME = OutputSchema("{}").name


class Param(msgspec.Struct, frozen=True):
    """One parameter and its request field."""

    name: str
    """In `Params` (`temperature`, `reasoning.effort`) or in the cache plan (`cache.key`)."""
    field: str | None = ""
    """The request field, `a.b` inside an object; empty: the same name; None: there is none."""
    encode: Callable[[Any], bytes | None] | None = None
    """Makes the field's JSON, if that is not the value's own; None leaves the field out."""
    decode: Callable[[Any], Any] | None = None
    """Makes the value from the field's, if they differ; None leaves the parameter out."""
    when: Callable[[Call], bool] | None = None
    """Whether the field can be sent with this call."""
    reason: str = ""
    """The notice if the parameter is set but not sent; empty: no notice."""

    @property
    def path(self) -> str:
        return self.name if self.name.startswith("cache.") else f"params.{self.name}"

    def value(self, call: Call) -> Any:
        """The value in the call; None if it is not set."""
        group, _, name = self.name.partition(".")
        if not name:
            value = getattr(call.params, group)
        else:
            holder: Any = call.ir.cache if group == "cache" else getattr(call.params, group)
            value = None if holder is None else getattr(holder, name)
        return (
            None
            if (type(value) is tuple and not value) or (group == "cache" and value is False)
            else value
        )

    def notice(self) -> Notice:
        code = "cache_option_left_out" if self.name.startswith("cache.") else "param_left_out"
        return Notice(code, f"{self.reason}; left out", self.path)


def encode_only(_: Any) -> None:
    """The `decode` of rows whose field another row decodes."""


class ParamTable:
    """The parameters of one wire, in the order of their request fields. Of two rows with the same
    field the later one is sent."""

    def __init__(self, *rows: Param, cache_params: Mapping[str, str]) -> None:
        self._rows = rows
        self._cache_params = [
            (rule, path.split("."))
            for rule, paths in cache_params.items()
            for path in paths.split()
        ]
        fields = [(row, row.name if row.field == "" else row.field) for row in rows]
        self._encoded = [(row, field.split(".")) for row, field in fields if field is not None]
        #: The rows whose fields are in one object, by the path of the object.
        objects: dict[str, list[tuple[str, Param]]] = {}
        for row, field in fields:
            if field is not None and row.decode is not encode_only:
                path, _, name = field.rpartition(".")
                objects.setdefault(path, []).append((name, row))
        self._decoded = [
            (
                path.split(".") if path else [],
                _getter([name for name, _ in rows]),
                [(*row.name.partition("."), row.decode) for _, row in rows],
            )
            for path, rows in objects.items()
        ]

    def sends(self, name: str) -> bool:
        """Whether a parameter, or a part of it, has a request field."""
        group = name.partition(".")[0]
        return any(
            row.name in (name, group) or row.name.startswith(f"{name}.") for row, _ in self._encoded
        )

    def encode(self, call: Call) -> FieldTree:
        """The request fields of the call's parameters."""
        tree: FieldTree = {}
        for row, field in self._encoded:
            value = row.value(call)
            if value is None or (row.when is not None and not row.when(call)):
                continue
            raw = dumps(value, path=row.path) if row.encode is None else row.encode(value)
            if raw is None:
                continue
            outer = tree
            for name in field[:-1]:
                outer = outer.setdefault(name, {})  # type: ignore[assignment]
            outer[field[-1]] = raw
        return tree

    def notices(self, call: Call) -> list[Notice]:
        """Notices for parameters that the call sets and the wire does not send."""
        return [
            row.notice()
            for row in self._rows
            if row.reason
            and row.value(call) is not None
            and (row.field is None if row.when is None else not row.when(call))
        ]

    def cache_params(self, model: bytes, tree: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
        """The encoded parameters that affect the cache without being part of the prompt, by their
        names in the cache rules."""
        params = [("model", model)]
        for rule, field in self._cache_params:
            value: Any = tree
            for name in field:
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None and params[-1][0] != rule:
                params.append((rule, _joined(value)))
        return tuple(params)

    def sent_cache_params(self, body: bytes) -> tuple[tuple[str, bytes], ...]:
        """The cache parameters of a request; `body` is an object of its model and parameters."""
        members = object_members(body, "$", request_error)
        nested = {field[0] for _, field in self._cache_params if len(field) > 1}
        tree: dict[str, Any] = {}
        for name, raw in members.items():
            if bytes(raw) == b"null":
                continue
            tree[name] = bytes(raw)
            if name in nested and bytes(raw)[:1] == b"{":
                inner = object_members(raw, f"$.{name}", request_error)
                tree[name] = {n: bytes(v) for n, v in inner.items() if bytes(v) != b"null"}
        return self.cache_params(tree["model"], tree)

    def decode(self, request: Any) -> tuple[Params, dict[str, Any]]:
        """The parameters of a request, and its options of the cache plan."""
        values: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        for path, get_fields, rows in self._decoded:
            holder = request
            for attribute in path:
                holder = getattr(holder, attribute, None)
            if holder is None:
                continue
            for index, value in enumerate(get_fields(holder)):
                if value is None:
                    continue
                group, _, name, decode = rows[index]
                if decode is not None and (value := decode(value)) is None:
                    continue
                if name:
                    groups.setdefault(group, {})[name] = value
                else:
                    values[group] = value
        cache = groups.pop("cache", {})
        for group, members in groups.items():
            values[group] = PARAM_GROUPS[group](**members)
        if not _SCALARS.issuperset(map(type, values.values())):
            return Params(**values), cache
        params: Params = _new_params()
        for name, value in values.items():
            force_setattr(params, name, value)
        return params, cache


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Gets these attributes of an object."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda holder: (get(holder),)


def joined_fields(tree: FieldTree) -> dict[str, bytes]:
    """The request fields, objects written out."""
    return {name: _joined(value) for name, value in tree.items()}


def _joined(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"{" + b",".join(string(n) + b":" + _joined(v) for n, v in value.items()) + b"}"


#: For error messages: the feature that a model without `forced_tools` refuses.
FORCED_TOOLS = "a forced tool choice; use auto or none"


def forces_tools(params: Params) -> bool:
    return params.tool_choice is not None and params.tool_choice.mode in ("required", "tool")


def has_thinking_budget(params: Params) -> bool:
    """Whether the call requests thinking with a budget. Adaptive thinking is compatible with a
    forced tool choice: recorded calls with both were answered."""
    return params.reasoning is not None and params.reasoning.mode == "enabled"


def _disables_thinking(params: Params) -> bool:
    return params.reasoning is not None and params.reasoning.mode == "disabled"


#: The feature that a model may lack, the parameter that uses it, its description, and whether a
#: call uses it.
_FEATURES: tuple[tuple[Feature, str, str, Callable[[Params], bool]], ...] = (
    ("forced_tools", "tool_choice", FORCED_TOOLS, forces_tools),
    (
        "forced_tools_while_thinking",
        "tool_choice",
        "a forced tool choice while it thinks; use auto or none",
        lambda params: forces_tools(params) and has_thinking_budget(params),
    ),
    ("disabled_thinking", "reasoning.mode", "thinking turned off", _disables_thinking),
    ("budgeted_thinking", "reasoning.mode", "thinking with a budget", has_thinking_budget),
    ("sampling", "temperature", "a temperature", lambda p: p.temperature is not None),
    ("sampling", "top_p", "a top_p", lambda p: p.top_p is not None),
    ("sampling", "top_k", "a top_k", lambda p: p.top_k is not None),
    (
        "altered_sampling",
        "temperature",
        "any temperature but 1",
        lambda p: p.temperature not in (None, 1),
    ),
    ("altered_sampling", "top_p", "any top_p but 1", lambda p: p.top_p not in (None, 1)),
)


def check_features(call: Call, table: ParamTable, refuses: Callable[[Feature], bool]) -> None:
    """Raise for parameters that the wire sends and the provider would answer with a 400."""
    for feature, field, description, is_used in _FEATURES:
        if is_used(call.params) and refuses(feature) and table.sends(field):
            raise InvalidRequest(f"{call.model} refuses {description}", path=f"params.{field}")
    choice = call.params.tool_choice
    if choice is not None and (choice.mode == "tool") != (choice.name is not None):
        raise InvalidRequest(
            "mode 'tool' needs the tool's name, and only that mode takes one",
            path="params.tool_choice.name",
        )


def whole_number(value: object, path: str = "params.max_tokens") -> bytes:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"must be a whole number, 0 or more, not {value!r}", path=path)
    return b"%d" % value


def schema_object(output: OutputSchema) -> bytes:
    return check_object(output.schema, path="params.output.schema").encode()


def closing_members(
    fields: dict[str, bytes], extras: Extras | None, wire: str, taken: tuple[str, ...]
) -> bytes:
    """The members that end a body: the parameters, then the extras of this wire.

    Objects in both are merged; any other member in both is an error. `taken` are the fields that
    the body has already.
    """
    if extras is None or wire not in extras:
        return _members(fields)
    path = f"extras.{wire}"
    for name, extra in object_members(extras[wire].encode(), path, request_error).items():
        if name in taken:
            raise InvalidRequest("the call already sets this; remove it", path=f"{path}.{name}")
        field = fields.get(name)
        fields[name] = (
            bytes(extra) if field is None else merge_fields(field, extra, f"{path}.{name}")
        )
    return _members(fields)


def _members(fields: Mapping[str, bytes | msgspec.Raw]) -> bytes:
    return b"".join(b"," + string(name) + b":" + bytes(raw) for name, raw in fields.items())


def common_notices(call: Call, wire: str, providers: tuple[str, ...]) -> list[Notice]:
    """Notices for values of a call that only other wires send."""
    return [
        *system_text_notices(call),
        *continuation_notices(call),
        *foreign_extras(call.extras, wire, "extras"),
        *foreign_comparison_notices(call, providers),
    ]


def system_text_notices(call: Call) -> list[Notice]:
    why = "system_text is not the system blocks joined by a blank line; the blocks are sent"
    wanted = not call.ir.system_fields_agree()
    return [Notice("system_blocks_sent", why, "system")] if wanted else []


def comparison_id(call: Call, providers: tuple[str, ...]) -> str | None:
    """The id of the response to compare with, if it is of one of these providers."""
    earlier = call.ir.cache.compare_with
    return earlier.id if earlier is not None and earlier.provider in providers else None


def foreign_comparison_notices(call: Call, providers: tuple[str, ...]) -> list[Notice]:
    earlier = call.ir.cache.compare_with
    if earlier is None or earlier.provider in providers:
        return []
    why = f"a response of {earlier.provider} is unknown to this provider; left out"
    return [Notice("cache_option_left_out", why, "cache.compare_with")]


def foreign_tier_notices(call: Call) -> list[Notice]:
    """A notice for a service tier that only Anthropic has. Hosts with OpenAI's wires have tiers of
    their own, so any other is sent unchanged."""
    why = "that tier is Anthropic's own; left out"
    foreign = call.params.service_tier in ANTHROPIC_TIERS
    return [Notice("param_left_out", why, "params.service_tier")] if foreign else []


def schema_only_notices(output: OutputFormat | None) -> list[Notice]:
    """Notices for fields of an output schema that a provider lacks: it takes only the schema."""
    if output is None or output == "json":
        return []
    reasons = {
        "name": "has no name here" if output.name != _DEFAULT_NAME else "",
        "description": "has no description here" if output.description is not None else "",
        "strict": "is always strict here" if output.strict is False else "",
    }
    return [
        Notice("param_left_out", f"an output schema {why}; left out", f"params.output.{field}")
        for field, why in reasons.items()
        if why
    ]


def continuation_notices(call: Call) -> list[Notice]:
    """A notice if the call continues a stored response, which this wire cannot."""
    why = (
        "a stored response cannot be continued here: only the messages of this call are sent,"
        " without other content of the response"
    )
    continued = call.ir.continuation is not None
    return [Notice("continuation_left_out", why, "continuation")] if continued else []
