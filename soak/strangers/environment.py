"""An environment of their own for clients that we did not write: .soak/strangers, made with pip.

    python soak/strangers/environment.py

Makes it, unless it is there and has what requirements.txt says, and prints its interpreter. Where it
cannot be made (there is no package registry), the reason goes to stderr and the status is 1.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent.parent / ".soak" / "strangers"
PINS = HERE / "requirements.txt"


def interpreter() -> str:
    """The interpreter of the environment, made first where it has to be."""
    stamp, python = VENV / "stamp", VENV / "bin" / "python"
    if stamp.exists() and stamp.read_text() == PINS.read_text():
        return str(python)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--no-input", "-r", str(PINS)]
    run = subprocess.run(pip, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(
            f"the clients cannot be installed (is there a registry?): {run.stderr[-300:]}"
        )
    stamp.write_text(PINS.read_text())
    return str(python)


if __name__ == "__main__":
    print(interpreter())
