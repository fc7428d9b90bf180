"""The user's folders, by the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path

from anaphora.errors import InvalidConfig


def user_folder(variable: str, default: str) -> Path:
    """The folder `anaphora` in one of the user's folders; relative paths in variables are
    ignored."""
    path = Path(os.environ.get(variable, ""))
    if not path.is_absolute():
        try:
            path = Path.home() / default
        except RuntimeError:  # a user without an entry in the system's list
            raise InvalidConfig(f"no home folder is known; set HOME or {variable}") from None
    return path / "anaphora"
