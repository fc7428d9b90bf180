"""The daemon's HTTP paths, and the methods of its JSON-RPC."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec

from anaphora import wire
from anaphora.daemon import handler
from anaphora.daemon.access.handles import NOT_LENT
from anaphora.daemon.faces import FACES
from anaphora.daemon.rpc import completion, methods
from anaphora.daemon.rpc.methods import METHODS, schemas

from . import source
from .markdown import code, docstring, fence, page, table
from .schemas import fields_table, type_text

HTTP = """\
The paths of the [daemon](../daemon.md). An app sends its token as `Authorization: Bearer
ana_…`, or in the header in which the provider's SDK sends its key."""

RPC = """\
The methods of `POST /rpc`, of the same on the Unix socket, and of `anaphora rpc --stdio`.
[JSON-RPC](../json-rpc.md) explains streams, errors and narrowed tokens. `anaphora rpc
--schema` prints these schemas as JSON."""

#: What the operations of a wire do.
_OPERATIONS = {
    "generate": "one completion",
    "stream": "one completion, as a stream",
    "count": "the tokens of a prompt",
    "models": "the models that the app may call",
    "show": "one model",
    "version": "the version",
    "embed": "embeddings",
}

_VERBS = ("GET", "POST", "PATCH", "DELETE")


def pages() -> dict[str, str]:
    return {
        "http.md": page("HTTP paths", HTTP, _http()),
        "json-rpc.md": page("JSON-RPC methods", RPC, _rpc()),
    }


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────


def _http() -> Iterator[str]:
    yield "## The daemon's own"
    yield ""
    listed = source.module_doc(handler.__name__).split("\n\n")[1]
    yield from fence("text", "\n".join(line.strip() for line in listed.splitlines()))
    for face in FACES.values():
        yield f"## {wire.WIRES[face.wire]}" + (f", as {face.form}" if face.form else "")
        yield ""
        rows = [
            (code(f"{method} {path}"), _OPERATIONS[operation])
            for (method, path), operation in face.operations.items()
        ]
        rows += [(code(path), _named(path)) for path in face.named_paths]
        if face.models_at_root:
            rows.append((code(f"GET {face.root}/models"), _OPERATIONS["models"]))
            rows.append((code(f"GET {face.root}/models/{{model}}"), _OPERATIONS["show"]))
        for one in face.stored:
            for name, verbs in ((one.path, one.methods), (f"{one.path}/{{id}}", one.own)):
                what = f"stored objects: {one.kind.replace('_', ' ')}"
                if verbs:
                    rows.append((code(f"{' '.join(sorted(verbs, key=_VERBS.index))} {name}"), what))
        yield from table(("path", ""), rows)
        headers = [("request id in answers", face.request_id_header), ("betas", face.beta_header)]
        headers += [("version", face.version_header)]
        yield from table(("header", ""), [(code(name), what) for what, name in headers if name])
    yield "## Not passed on"
    yield ""
    yield "A path is answered with 404, a field in a body with 403, and with this sentence."
    yield ""
    rows = [(code(what), sentence) for what, sentence in NOT_LENT.items()]
    yield from table(("path or field", ""), rows)


def _named(path: str) -> str:
    return "the model is in the path" if "{model}" in path else ""


# ── JSON-RPC ─────────────────────────────────────────────────────────────────────────────────────


def _rpc() -> Iterator[str]:
    found = schemas()
    definitions: dict[str, Any] = found["$defs"]
    kinds = _structs(methods, completion)
    links = {name: name.lower() for name in definitions if name in kinds}
    for name, method in METHODS.items():
        yield f"## {name}"
        yield ""
        needs = method.capability
        yield f"Needs the capability `{needs}`." if needs else "Needs a valid token only."
        if not method.notified:
            yield "Not executed as a notification."
        yield ""
        for part in ("params", "result"):
            kind = type_text(found["methods"][name][part], links)
            yield f"- {part}: {kind}"
        yield ""
    yield "## Types"
    yield ""
    for name, definition in sorted(definitions.items()):
        if name not in kinds:
            continue
        yield f"### {name}"
        yield ""
        yield from docstring(kinds[name].__doc__)
        yield from fields_table(kinds[name], definition, links)
    yield from _admin()


def _admin() -> Iterator[str]:
    yield "## Methods of administrators"
    yield ""
    yield "With a token of `anaphora admin token`. The commands of the same names call them."
    yield ""
    for name, kind in sorted(admin_methods().items()):
        yield f"### {name}"
        yield ""
        [schema], definitions = msgspec.json.schema_components(
            [kind], ref_template="#/$defs/{name}"
        )
        own = definitions.get(schema["$ref"].rpartition("/")[2], {})
        rows = fields_table(kind, own, {})
        yield from rows or ["No params.", ""]


def admin_methods() -> dict[str, type[msgspec.Struct]]:
    """The params of each method, by the calls of `register` in the daemon."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module in source.modules_with('register("admin.'):
        for node in ast.walk(source.tree_of(module)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="register"),
                    args=[ast.Constant(value=str(name)), ast.Name(id=kind), _],
                ) if name.startswith("admin."):
                    found[name] = getattr(import_module(module), kind)
    return found


def _structs(*modules: Any) -> dict[str, type[msgspec.Struct]]:
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }
