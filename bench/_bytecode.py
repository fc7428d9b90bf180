"""The package of this working tree, with bytecode as an installed one has it.

The libraries measured beside it are installed, and pip compiles what it installs. A working tree is
not, and some machines keep Python from writing bytecode: code that is compiled anew at every start
lies scattered in memory, and runs some 5 % slower.
"""

from __future__ import annotations

import compileall
import os
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"


def compiled() -> None:
    """Compiles what has changed, before a process is started that is measured. Those that are
    started from here import the package of this tree, whichever is installed."""
    compileall.compile_dir(SOURCE / "anaphora", quiet=2)
    os.environ["PYTHONPATH"] = str(SOURCE)
    sys.path.insert(0, str(SOURCE))
