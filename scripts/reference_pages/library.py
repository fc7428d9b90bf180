"""The library: a page for each public package, with the signature and docstring of each name of
`__all__`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from . import source
from .markdown import cell, code, docstring, fence, page, table
from .source import Definition

#: The pages, and their first sentences. `anaphora.errors` is in errors.md.
PACKAGES = {
    "anaphora": "The names used most: clients, sessions, messages, prompts, tools.",
    "anaphora.client": "The adapter for other interfaces, observers, structured output.",
    "anaphora.values": "Parts of messages, replies, stream events.",
    "anaphora.prompt": "Marks, cache plans of a prompt, output schemas, reasoning, compaction.",
    "anaphora.wire": "Render, parse, assemble and read, for each provider protocol.",
    "anaphora.cache": "Fingerprints, the planner, the simulator and the verdict.",
    "anaphora.catalog": "Model profiles, cache rules, dialects and prices, as dated data.",
    "anaphora.replay": "Recordings, and transports that make and serve them.",
    "anaphora.audit": "The hash-chained log of calls.",
    "anaphora.emulator": "A local server that behaves like the providers.",
    "anaphora.integrations": "Hooks for the official SDKs, and adapters for frameworks.",
    "anaphora.usage.fleet": "What the logs of a fleet cost and lost.",
}
#: The table of public modules.
STABILITY = source.SRC.parent / "docs" / "stability.md"


def pages() -> dict[str, str]:
    groups: dict[str, list[str]] = {name: [] for name in PACKAGES}
    with_names = set(source.modules_with("\n__all__ = ["))
    for module in re.findall(r"^\| `([\w.]+)` \|", STABILITY.read_text(), re.MULTILINE):
        if module in with_names and module != "anaphora.errors":
            groups[_package_of(module)].append(module)
    return {
        f"library-{package.removeprefix('anaphora.').replace('.', '-')}.md": _page(package, modules)
        for package, modules in groups.items()
    }


def _package_of(module: str) -> str:
    found = [name for name in PACKAGES if f"{module}.".startswith(f"{name}.")]
    if not found or (module != "anaphora" and found == ["anaphora"]):
        raise LookupError(f"{module} is public; add its package to PACKAGES of {__name__}")
    return max(found, key=len)


def _page(package: str, modules: list[str]) -> str:
    return page(package, PACKAGES[package], _lines(package, modules))


def _lines(package: str, modules: list[str]) -> Iterator[str]:
    for module in modules:
        if module != package:
            yield f"## {module}"
            yield ""
        yield from docstring(source.module_doc(module))
        for name in source.public_names(module):
            yield f"{'##' if module == package else '###'} {name}"
            yield ""
            yield from _definition(source.find(module, name))
    yield from _options(modules)


def _options(modules: list[str]) -> Iterator[str]:
    """The keyword arguments that functions and methods of the page take as `**options`."""
    found: dict[str, Definition] = {}
    names = [(module, name) for module in modules for name in source.public_names(module)]
    for module, node in (source.find(*each)[::2] for each in names):
        for inner in ast.walk(node or ast.Module(body=[], type_ignores=[])):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                name = source.options_of(inner)
                if name and name not in found:
                    found[name] = source.find(module, name)
    if found:
        yield "## Options"
        yield ""
        yield "Keyword arguments that several functions and methods above take."
        yield ""
    for name, definition in sorted(found.items()):
        assert isinstance(definition.node, ast.ClassDef)
        yield f"### {name}"
        yield ""
        yield from docstring(ast.get_docstring(definition.node))
        rows = [_field(each)[:2] + _field(each)[3:] for each in source.members(definition)]
        yield from table(("option", "type", ""), rows)


def _definition(found: Definition) -> Iterator[str]:
    node = found.node
    if node is None:
        page_of = ": [all errors](errors.md)" if found.name == "errors" else ""
        yield f"The module `{found.module}`{page_of}."
        yield ""
    elif isinstance(node, ast.ClassDef):
        yield from _class(found, node)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        shown = source.overloads(source.tree_of(found.module).body, node)
        yield from fence("python", "\n\n".join(map(source.signature, shown)))
        yield from docstring(ast.get_docstring(node))
    else:
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        yield from fence("python", _assignment(node))
        yield from docstring(found.doc)


def _assignment(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = "" if node.value is None else ast.unparse(node.value)
    parts = ast.unparse(target), value
    line = " = ".join(filter(None, parts))
    if len(line) <= source.WIDTH:
        return line
    match node.value:
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=choices)):
            inner = "".join(f"    {ast.unparse(each)},\n" for each in choices)
            return f"{parts[0]} = {ast.unparse(outer)}[\n{inner}]"
        case ast.BinOp(op=ast.BitOr()):
            return f"{parts[0]} = (\n    " + value.replace(" | ", "\n    | ") + "\n)"
        case ast.Dict() | ast.List() | ast.Tuple() | ast.Set() | ast.Call():
            return f"{parts[0]} = …"
    return line


def _class(found: Definition, node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    members = source.members(found)
    made = next((each for each in members if each.name == "__init__"), None)
    if made is not None and isinstance(made.node, ast.FunctionDef):
        text = "class " + source.signature(made.node, found.name, is_method=True)
    else:
        text = f"class {found.name}" + (f"({bases})" if bases else "")
    yield from fence("python", text)
    yield from docstring(ast.get_docstring(node))
    if made is not None and made.doc:
        yield from docstring(made.doc)
    fields = [each for each in members if isinstance(each.node, ast.AnnAssign)]
    yield from table(("field", "type", "default", ""), [_field(each) for each in fields])
    for each in members:
        if each.name == "__init__" or isinstance(each.node, ast.AnnAssign):
            continue
        if source.decorated(each.node, "setter"):
            continue
        if source.decorated(each.node, "property", "cached_property"):
            kind = "" if each.node.returns is None else ast.unparse(each.node.returns)
            yield f"**`{found.name}.{each.name}`** (property): {code(kind)}"
            yield ""
        else:
            name = f"{found.name}.{each.name}"
            shown = (source.signature(one, name, is_method=True) for one in each.overloads)
            yield from fence("python", "\n\n".join(shown))
        yield from docstring(each.doc)


def _field(member: source.Member) -> tuple[str, str, str, str]:
    node = member.node
    assert isinstance(node, ast.AnnAssign)
    kind = ast.unparse(node.annotation)
    if kind.startswith("ClassVar["):
        kind = kind.removeprefix("ClassVar[").removesuffix("]")
    default = "" if node.value is None else ast.unparse(node.value)
    if default.startswith(("msgspec.field", "field(")) or len(default) > 60:
        default = "…"
    return code(member.name), code(kind), code(default), cell(member.doc)
