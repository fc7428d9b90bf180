"""Bytecode for this package, as an installed one has it.

The libraries measured beside it are installed, and pip compiles what it installs. A working tree is
not, and some machines keep Python from writing bytecode: code that is compiled anew at every start
lies scattered in memory, and runs some 5 % slower.
"""

from __future__ import annotations

import compileall
from importlib.util import find_spec


def compiled() -> None:
    """Compiles what has changed; before a process is started that is measured."""
    found = find_spec("anaphora")
    assert found is not None
    for folder in found.submodule_search_locations or ():
        compileall.compile_dir(folder, quiet=2)
