"""The emulator at a socket: Starlette and Granian."""

from __future__ import annotations
