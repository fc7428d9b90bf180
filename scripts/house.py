"""Measure the structure of the package: size, circles, duplicates, what one turn runs through.

    python scripts/house.py [--check] [--no-trace]

Prints a table and, as the last line, one JSON object. `--check` exits with 1 where a limit that
`make check` enforces is exceeded; it does not trace a turn.

Limits are for what the package held at its second edition (docs/decisions/0018). `LATER` lists
what was added since, as paths below src/anaphora: whole packages, and the files inside others whose
subject came later. These are counted apart. A turn is traced through all files.

Imports under `if TYPE_CHECKING` never run and are not part of a circle.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "anaphora"
FOLDERS = (SOURCE, ROOT / "examples")
#: Packages and files that were added after the limits were set: paths below src/anaphora, without
#: the ending of a file.
LATER = (
    "replay",
    "audit",
    "proxy",
    "pytest_plugin",
    "serving",
    "dashboard",
    "daemon",
    "integrations",
    "postgres",
    # calls side by side, MCP, idle time
    "client/fan_out",
    "client/mcp",
    "client/session/keep_warm",
    "client/session/cached_prefix",
    "cache/plan/groups",
    # conversations by id
    "client/conversations",
    "client/session/keeper",
    "client/session/kept",
    "client/session/saved",
    "client/session/saved_state",
    "rendered/stored",
    # other programs' requests: recognised, compared, and changed in their bytes
    "analysis/conversation_plans",
    "cache/compared_prompt",
    "cache/prefix_index",
    "wire/body_memory",
    "wire/spans",
    "wire/splicing",
    # predictions on other programs' traffic
    "analysis/trace/account",
    "analysis/trace/blocks",
    "analysis/trace/sent_blocks",
    "cache/simulator/chances",
    # objects that an emulated provider stores, its page, and the cost of schemas
    "emulator/hosts/openai_stored",
    "emulator/hosts/stored",
    "emulator/page",
    # messages as dicts, and values that check themselves
    "values/fields",
    "wire/message_dicts",
    *(
        f"cli/{name}"
        for name in (
            "ask ask_chat ask_files watch watch_lines watch_output recorded_run replay"
            " replay_folder upstreams audit audit_report html_file serve emulated_home apps grants"
            " secrets spend spend_html store rpc nodes daemon_connection map map_lines"
        ).split()
    ),
)
WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini", "ollama")
LIMITS = {
    "lines": 47_000,
    "files": 260,
    "session_turn_files": 40,
    "session_turn_lines": 7_000,
    "duplicate_class_names": 0,
    "import_circles": 0,
    "wire_ifs_above_wire": 5,
    "memo_objects": 12,
    "longest_function": 60,
}
CHECKED = ("duplicate_class_names", "import_circles", "wire_ifs_above_wire", "longest_function")
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

    @property
    def is_later(self) -> bool:
        """Whether `LATER` lists the file, or a folder that holds it."""
        parts = Path(*self.inside).with_suffix("").parts if self.inside else ()
        return any("/".join(parts[:depth]) in LATER for depth in range(1, len(parts) + 1))


def modules() -> tuple[list[Module], list[Module]]:
    """The files that the limits are for, and those of `LATER`."""
    found = [Module(path) for top in FOLDERS for path in sorted(top.rglob("*.py"))]
    later = [module for module in found if module.is_later]
    return [module for module in found if not module.is_later], later


# ── Counting ─────────────────────────────────────────────────────────────────────────────────────


def docstring_lines(found: list[Module]) -> int:
    total = 0
    for module in found:
        for node in ast.walk(module.tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    total += (node.end_lineno or node.lineno) - node.lineno + 1
    return total


def functions(found: list[Module]) -> list[tuple[int, str]]:
    """Each function's length and place, longest first."""
    return sorted(
        (
            ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module.place}:{node.name}")
            for module in found
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        reverse=True,
    )


def duplicate_classes(found: list[Module]) -> dict[str, list[str]]:
    """Public class names defined in more than one file. The same role in several wires or emulator
    hosts counts as one place."""
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


def imported(module: Module, names: set[str]) -> set[str]:
    """The modules of ours that a file imports when it runs, inside functions too."""
    package = module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0]
    skipped = {
        id(inner)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
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


def circles(found: list[Module]) -> list[list[str]]:
    """The strongly connected components of the import graph (Tarjan's algorithm)."""
    names = {module.name for module in found}
    graph = {module.name: sorted(imported(module, names)) for module in found}
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
            component = []
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
        if module.inside[:1] in (("wire",), ("catalog",)) or module.inside[:2] == (
            "emulator",
            "hosts",
        ):
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
                hits.append(f"{module.place}:{node.lineno}")
    return hits


# ── What is remembered between calls ─────────────────────────────────────────────────────────────


def memos(found: list[Module]) -> list[str]:
    """Module- and class-level containers that are changed after import, and cached functions."""
    stateful = _stateful_classes(found)
    hits = []
    for module in found:
        changed = _changed_names(module.tree)
        for scope in (
            module.tree,
            *(n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef)),
        ):
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


# ── One turn ─────────────────────────────────────────────────────────────────────────────────────


def session_turn() -> list[Path]:
    """The files that run in one warm, streamed `send` with a tool on Anthropic."""
    import subprocess

    program = Path(__file__).with_name("trace_turn.py")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return [Path(line) for line in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--no-trace", action="store_true", help="do not run a turn")
    parser.add_argument("--list", action="store_true", help="show each hit, not only the counts")
    options = parser.parse_args()
    found, later = modules()
    # Files of a checked package stay checked, whenever they were added.
    checked = found + [module for module in later if module.inside[0] not in LATER]
    long = functions(checked)
    lists: dict[str, Iterator[str] | list[str]] = {
        "duplicate_class_names": [
            f"{k}: {', '.join(v)}" for k, v in duplicate_classes(checked).items()
        ],
        "import_circles": [" <-> ".join(circle) for circle in circles(checked)],
        "wire_ifs_above_wire": wire_branches(checked),
        "memo_objects": memos(checked),
    }
    figures: dict[str, int] = {
        "lines": sum(module.lines for module in found),
        "files": len(found),
        **{name: len(list(hits)) for name, hits in lists.items()},
        "longest_function": long[0][0],
        "docstring_lines": docstring_lines(found),
        "later_lines": sum(module.lines for module in later),
        "later_files": len(later),
    }
    if not (options.check or options.no_trace):
        files = session_turn()
        figures["session_turn_files"] = len(files)
        figures["session_turn_lines"] = sum(path.read_text().count("\n") for path in files)
        if options.list:
            lists["session_turn_files"] = [
                f"{path.read_text().count(chr(10)):5} {path.relative_to(ROOT)}" for path in files
            ]
    if options.list:
        lists["longest_function"] = [f"{n} {place}" for n, place in long if n > 60]
    exceeded = [
        name
        for name, limit in LIMITS.items()
        if figures.get(name, 0) > limit and (name in CHECKED or not options.check)
    ]
    for name, value in figures.items():
        limit = LIMITS.get(name)
        print(f"{name:24}{value:>8,}" + (f"  (limit {limit:,})" if limit is not None else ""))
        if options.list or (options.check and name in exceeded):
            for hit in lists.get(name, ()):
                print(f"    {hit}")
    print(f"{'longest':24}{long[0][1]:>8}")
    print(json.dumps(figures))
    return 1 if options.check and exceeded else 0


if __name__ == "__main__":
    raise SystemExit(main())
