"""Reads the source: lines, functions, class names, imports, branches, caches and bases.

`house.py` prints these figures, and holds them against their limits.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "anaphora"
FOLDERS = (SOURCE, ROOT / "examples")
WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini", "bedrock")
#: Calls that make a container, and methods that change one.
CONTAINERS = {
    "dict", "list", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict",
    "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "local",
}  # fmt: skip
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop",
    "popitem", "remove", "setdefault", "update",
}  # fmt: skip


class Module:
    """One file: its dotted name and its syntax tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.tree = ast.parse(self.text, str(path))
        parts = path.relative_to(ROOT / "src" if SOURCE in path.parents else ROOT).with_suffix("")
        self.name = ".".join(part for part in parts.parts if part != "__init__")

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def inside(self) -> tuple[str, ...]:
        """The folders below the package."""
        return self.path.relative_to(SOURCE).parts if SOURCE in self.path.parents else ()


def modules() -> list[Module]:
    return [Module(path) for top in FOLDERS for path in sorted(top.rglob("*.py"))]


# ── Counting ─────────────────────────────────────────────────────────────────────────────────────


def docstring_lines(found: list[Module]) -> int:
    total = 0
    for module in found:
        for node in ast.walk(module.tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    total += (node.end_lineno or node.lineno) - node.lineno + 1
    return total


def functions(found: list[Module]) -> list[tuple[int, int, str]]:
    """Each function's length, the number of its parameters, and its place."""
    return [
        (
            (node.end_lineno or node.lineno) - node.lineno + 1,
            _parameters(node.args),
            f"{module.place}:{node.lineno} {node.name}",
        )
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _parameters(given: ast.arguments) -> int:
    """Without `self` and `cls`; `*args` and `**options` are one each."""
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    if names[:1] in (["self"], ["cls"]):
        del names[0]
    return len(names) + (given.vararg is not None) + (given.kwarg is not None)


def duplicate_classes(found: list[Module]) -> dict[str, list[str]]:
    """Public class names defined in more than one file. The same role in several wires, emulator
    hosts or faces counts as one place."""
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for module in found:
        role = module.place
        for at, part in enumerate(module.inside):
            if part.removesuffix(".py") in WIRES:
                role = "/".join((*module.inside[:at], "*"))
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].setdefault(role, module.place)
    return {name: sorted(at.values()) for name, at in places.items() if len(at) > 1}


# ── Imports ──────────────────────────────────────────────────────────────────────────────────────


def imported(module: Module, names: set[str], *, with_types: bool) -> set[str]:
    """The modules of ours that a file imports when it runs, inside functions too; `with_types`
    those under `if TYPE_CHECKING` as well."""
    package = module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0]
    skipped = {
        id(inner)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
        if not with_types
    }
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                above = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{above}.{base}" if base else above
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in names else base)
    return (found & names) - {module.name}


def circles(found: list[Module], *, with_types: bool = False) -> list[list[str]]:
    """The strongly connected components of the import graph (Tarjan's algorithm)."""
    names = {module.name for module in found}
    graph = {
        module.name: sorted(imported(module, names, with_types=with_types)) for module in found
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component: list[str] = []
            while not component or component[-1] != name:
                component.append(stack.pop())
            if len(component) > 1:
                components.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return sorted(components)


# ── Branches on a wire's name ────────────────────────────────────────────────────────────────────


def wire_names() -> set[str]:
    import tomllib

    rows = tomllib.loads((SOURCE / "catalog" / "dialects.toml").read_text())
    names = set(WIRES)
    for row in rows.get("dialect", ()):
        names |= {row[key] for key in ("provider", "name") if key in row}
    return names


def wire_branches(found: list[Module]) -> list[str]:
    """Comparisons, `in`, `match` and dict literals on a wire's or dialect's name, outside the
    folders whose job that is."""
    names = wire_names()

    def named(node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return node.value in names
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(named(each) for each in node.elts)
        if isinstance(node, ast.Call) and node.args:
            return any(named(each) for each in node.args)
        return False

    hits = []
    for module in found:
        if module.inside[:1] in (("wire",), ("catalog",)):
            continue
        if module.inside[:2] in (("emulator", "hosts"), ("daemon", "faces")):
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Compare():
                    hit = any(named(each) for each in (node.left, *node.comparators))
                case ast.MatchValue():
                    hit = named(node.value)
                case ast.Dict():
                    hit = any(key is not None and named(key) for key in node.keys)
                case _:
                    hit = False
            if hit:
                hits.append(f"{module.place}:{getattr(node, 'lineno', 0)}")
    return hits


# ── What is remembered between calls ─────────────────────────────────────────────────────────────


def memos(found: list[Module]) -> list[str]:
    """Module- and class-level containers that are changed after import, and cached functions."""
    stateful = _stateful_classes(found)
    hits = []
    for module in found:
        changed = _changed_names(module.tree)
        scopes: list[ast.Module | ast.ClassDef] = [module.tree]
        scopes += [n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef)]
        for scope in scopes:
            for node in scope.body:
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        pass
                    case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                        pass
                    case ast.FunctionDef(name=name) if _is_cached(node):
                        hits.append(f"{module.place}:{node.lineno} {name}")
                        continue
                    case _:
                        continue
                struct_field = isinstance(scope, ast.ClassDef) and isinstance(node, ast.AnnAssign)
                if struct_field:
                    continue  # a default, copied for each instance
                if (_is_container(value) and name in changed) or _holds_state(value, stateful):
                    hits.append(f"{module.place}:{node.lineno} {name}")
    return hits


def _is_cached(node: ast.FunctionDef) -> bool:
    names = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
    return bool(names & {"cache", "lru_cache"})


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    return isinstance(value, ast.Call) and _called(value) in CONTAINERS


def _called(value: ast.Call) -> str:
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return ast.unparse(function).split(".")[-1]


def _holds_state(value: ast.expr, stateful: set[str]) -> bool:
    """Whether an instance of a class with a container inside is made here."""
    return any(isinstance(node, ast.Call) and _called(node) in stateful for node in ast.walk(value))


def _stateful_classes(found: list[Module]) -> set[str]:
    """Classes that keep a container in an attribute and change it in a method."""
    names = set()
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                kept = {
                    target.attr
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Assign | ast.AnnAssign)
                    and inner.value is not None
                    and _is_container(inner.value)
                    for target in (
                        inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                    )
                    if isinstance(target, ast.Attribute)
                }
                if kept & _changed_names(node):
                    names.add(node.name)
    return names


def _changed_names(tree: ast.AST) -> set[str]:
    """Names and attributes that are changed in place."""
    changed: set[str] = set()

    def base(node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            changed.add(node.id)
        elif isinstance(node, ast.Attribute):
            changed.add(node.attr)

    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in MUTATORS:
                base(value)
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                base(value)
            case ast.AugAssign(target=ast.Name() | ast.Attribute() as target):
                base(target)
            case ast.Call(func=ast.Attribute(attr="set"), args=[_]):
                pass
            case _:
                pass
    return changed


# ── Bases and protocols ──────────────────────────────────────────────────────────────────────────


class Class:
    """A class of ours: its bases, and the names that its body defines."""

    def __init__(self, module: Module, node: ast.ClassDef, imports: dict[str, str]) -> None:
        self.id = f"{module.name}.{node.name}"
        self.place = f"{module.place}:{node.lineno} {node.name}"
        names = [
            ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            for base in node.bases
        ]
        self.is_protocol = any(name.split(".")[-1] == "Protocol" for name in names)
        self.bases = [imports.get(name, f"{module.name}.{name}") for name in names]
        self.defines: set[str] = set()
        for each in ast.walk(node):
            match each:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.defines.add(each.name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    self.defines.add(name)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self.defines.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    self.defines.add(name)
                case _:
                    pass


def classes_of(found: list[Module]) -> list[Class]:
    classes = []
    for module in found:
        package = module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0]
        imports = {}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, node.module or ""] if node.level else [node.module or ""])
                for alias in node.names:
                    imports[alias.asname or alias.name] = f"{base.rstrip('.')}.{alias.name}"
        classes += [
            Class(module, node, imports)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        ]
    # A class may be imported from a package that imports it from its module.
    places = {each.id: each for each in classes}
    by_name: dict[str, list[str]] = defaultdict(list)
    for id in places:
        by_name[id.rpartition(".")[2]].append(id)
    for each in classes:
        each.bases = [
            next((id for id in by_name[base.rpartition(".")[2]] if _reaches(base, id)), base)
            for base in each.bases
        ]
    return classes


def _reaches(imported_as: str, id: str) -> bool:
    """Whether a name of a package may stand for a class in a module below it."""
    package = imported_as.rpartition(".")[0]
    return imported_as == id or (package.startswith("anaphora") and id.startswith(f"{package}."))


def single_bases(found: list[Module]) -> list[str]:
    """Classes with exactly one direct subclass, and Protocols that exactly one class implements: by
    name, or by all its members. A Protocol with `__call__` stands for functions."""
    classes = classes_of(found)
    named = {each.id: each for each in classes}

    def members(one: Class, seen: frozenset[str] = frozenset()) -> set[str]:
        above = (named[base] for base in one.bases if base in named and base not in seen)
        return one.defines.union(*(members(each, seen | {one.id}) for each in above))

    hits = []
    for one in classes:
        below = [each for each in classes if one.id in each.bases]
        if one.is_protocol and "__call__" not in one.defines:
            asked = {name for name in one.defines if not name.startswith("_")} or one.defines
            below = [
                each
                for each in classes
                if each is not one and not each.is_protocol
                if one.id in each.bases or asked <= members(each)
            ]
        if len(below) == 1:
            hits.append(f"{one.place} <- {below[0].place}")
    return hits
