"""What is answered: scripted, or invented; the same each time."""

from __future__ import annotations

from .inventing import invent
from .said import Said, tokens_of

__all__ = ["Said", "invent", "tokens_of"]
