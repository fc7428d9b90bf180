"""Tools from the command line: functions of modules in the current folder, or installed ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anaphora.errors import InvalidTool
from anaphora.tools import ToolRegistry


def registry_of(names: Iterable[str]) -> ToolRegistry | None:
    """The functions that `module:function` name; None where none is named."""
    found = [_function(name) for name in dict.fromkeys(names)]
    if not found:
        return None
    registry = ToolRegistry()
    for function in found:
        registry.add(function)
    return registry


def _function(name: str) -> Any:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise InvalidTool("write module:function", path=f"--tool {name}")
    found = _module(module, name)
    for step in path.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise InvalidTool(f"{module} has no {path}", path=f"--tool {name}") from None
    if not callable(found):
        raise InvalidTool(f"{path} is no function", path=f"--tool {name}")
    return found


def _module(module: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except Exception as problem:
        # Theirs, whatever it is: it must not look like a bug of ours.
        if isinstance(problem, ModuleNotFoundError) and problem.name == module:
            reason = f"there is no module {module} here ({here})"
        else:
            reason = f"importing {module} failed: {type(problem).__name__}: {problem}"
        raise InvalidTool(reason, path=f"--tool {name}") from problem
