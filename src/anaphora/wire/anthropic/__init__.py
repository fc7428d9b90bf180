"""Anthropic Messages: `POST /v1/messages`."""

from __future__ import annotations

from anaphora.wire.assembling import assemble

from .reply import read_reply
from .request import render

__all__ = ["assemble", "read_reply", "render"]
