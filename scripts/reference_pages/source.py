"""Names of the package as its source defines them, without importing it: some modules need packages
that are not installed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

SRC = Path(__file__).resolve().parents[2] / "src"
WIDTH = 88

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    module: str
    name: str
    node: ast.stmt | None
    """None: a module."""
    doc: str
    """Of a constant or an alias: the string or the comment beside it."""


@cache
def file_of(module: str) -> Path | None:
    path = SRC / module.replace(".", "/")
    for found in (path / "__init__.py", path.with_suffix(".py")):
        if found.is_file():
            return found
    return None


@cache
def tree_of(module: str) -> ast.Module:
    path = file_of(module)
    assert path is not None, module
    return ast.parse(path.read_text())


def modules_with(text: str) -> Iterator[str]:
    """The modules of the package whose source has a text."""
    for path in sorted((SRC / "anaphora").rglob("*.py")):
        if text in path.read_text():
            parts = path.relative_to(SRC).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_names(module: str) -> list[str]:
    """The names of `__all__`; empty without one."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return sorted(names, key=lambda name: (name.lower(), name))
    return []


def module_doc(module: str) -> str:
    return ast.get_docstring(tree_of(module)) or ""


@cache
def find(module: str, name: str) -> Definition:
    """Where a name is defined, through imports."""
    body = tree_of(module).body
    for at, node in enumerate(body):
        if _defines(node, name):
            return Definition(module, name, node, _beside(module, body, at))
    if (found := _imports(module).get(name)) is not None:
        return _imported(module, *found)
    raise LookupError(f"{module}.{name} is in __all__ and not defined")


@cache
def _imports(module: str) -> dict[str, tuple[ast.ImportFrom, str]]:
    """The names that a module imports, also for type checkers alone, with their own names."""
    found: dict[str, tuple[ast.ImportFrom, str]] = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, (node, alias.name))
    return found


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name and not _is_overload(node)
        case ast.Assign():
            return any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
        case ast.AnnAssign(target=ast.Name(id=target)):
            return target == name
    return False


def _imported(module: str, node: ast.ImportFrom, name: str) -> Definition:
    base = node.module or ""
    if node.level:
        path = file_of(module)
        assert path is not None
        parts = module.split(".")
        up = node.level - (path.name == "__init__.py")
        base = ".".join([*parts[: len(parts) - up], *filter(None, [base])])
    if base == module:
        return Definition(f"{base}.{name}", name, None, module_doc(f"{base}.{name}"))
    return find(base, name)


def _beside(module: str, body: list[ast.stmt], at: int) -> str:
    """The string after an assignment, or the `#:` comment before it."""
    after = body[at + 1] if at + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return str(after.value.value)
    path = file_of(module)
    assert path is not None
    lines = path.read_text().splitlines()[: body[at].lineno - 1]
    comment: list[str] = []
    while lines and lines[-1].startswith("#:"):
        comment.insert(0, lines.pop()[2:].strip())
    return " ".join(comment)


# ── Classes ──────────────────────────────────────────────────────────────────────────────────────


class Member(NamedTuple):
    name: str
    node: FunctionNode | ast.AnnAssign
    doc: str
    overloads: Sequence[FunctionNode] = ()


def members(found: Definition) -> list[Member]:
    """The public fields, properties and methods of a class, with inherited ones of this package."""
    merged: dict[str, Member] = {}
    for definition in reversed([*_lineage(found)]):
        assert isinstance(definition.node, ast.ClassDef)
        for member in _own_members(definition.node):
            if member.name in merged and not member.doc:
                member = member._replace(doc=merged[member.name].doc)
            merged[member.name] = member
    return [*merged.values()]


def _lineage(found: Definition) -> Iterator[Definition]:
    """A class and its bases in this package."""
    yield found
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name):
            try:
                above = find(found.module, name.id)
            except (LookupError, AssertionError):
                continue
            if isinstance(above.node, ast.ClassDef):
                yield from _lineage(above)


def _own_members(node: ast.ClassDef) -> Iterator[Member]:
    for at, each in enumerate(node.body):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_public(each.name) and not _is_overload(each):
                doc = ast.get_docstring(each) or ""
                yield Member(each.name, each, doc, overloads(node.body, each))
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            doc = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                doc = str(after.value.value)
            if not each.target.id.startswith("_"):
                yield Member(each.target.id, each, doc)


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _is_overload(node: FunctionNode | ast.ClassDef) -> bool:
    return any(ast.unparse(each).endswith("overload") for each in node.decorator_list)


def overloads(body: list[ast.stmt], node: FunctionNode) -> list[FunctionNode]:
    """The overloads of a function in its module or class; itself if it has none."""
    functions = (each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return [each for each in functions if each.name == node.name and _is_overload(each)] or [node]


def decorated(node: FunctionNode, *names: str) -> bool:
    found = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
    return not found.isdisjoint(names)


# ── Signatures ───────────────────────────────────────────────────────────────────────────────────


def signature(node: FunctionNode, name: str = "", *, is_method: bool = False) -> str:
    """`def name(…) -> …`, one parameter a line if it is long."""
    word = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    if is_method:
        word = word.replace("def ", "")
    static = decorated(node, "staticmethod")
    params = _params(node.args, drop_first=is_method and not static)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    head = word + (name or node.name)
    if name and node.name == "__init__":
        head, result = name, ""
    line = f"{head}({', '.join(params)}){result}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {param},\n" for param in params)
    return f"{head}(\n{inner}){result}"


def _params(args: ast.arguments, *, drop_first: bool) -> list[str]:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + [*args.defaults]
    listed = [_param(arg, default) for arg, default in zip(plain, defaults, strict=True)]
    if args.posonlyargs:
        listed.insert(len(args.posonlyargs), "/")
    if drop_first:
        listed = listed[1:]
    if args.vararg is not None:
        listed.append("*" + _param(args.vararg, None))
    elif args.kwonlyargs:
        listed.append("*")
    listed += [
        _param(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg is not None:
        listed.append("**" + _param(args.kwarg, None))
    return listed


def options_of(node: FunctionNode) -> str:
    """The `TypedDict` of a function's keyword arguments; empty if it has none."""
    match node.args.kwarg:
        case ast.arg(
            annotation=ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=name))
        ):
            return name
    return ""


def _param(arg: ast.arg, default: ast.expr | None) -> str:
    kind = "" if arg.annotation is None else f": {ast.unparse(arg.annotation)}"
    if default is None:
        return arg.arg + kind
    return f"{arg.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"


def text_of_class(module: str, name: str) -> str:
    node = find(module, name).node
    assert node is not None
    return ast.unparse(node)
