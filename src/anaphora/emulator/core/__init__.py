"""The emulator without a socket: a request and a time in, an answer out."""

from __future__ import annotations
