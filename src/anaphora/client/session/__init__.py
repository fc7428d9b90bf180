"""Conversations: `Session`, its tool loop `Run`, and `Preview` of the next call."""

from .preview import OnPrefixBreak, PrefixWarning, Preview
from .run import Run, RunResult
from .session import Session

__all__ = ["OnPrefixBreak", "PrefixWarning", "Preview", "Run", "RunResult", "Session"]
