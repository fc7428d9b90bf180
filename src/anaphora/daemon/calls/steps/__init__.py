"""The steps of a call, one of which follows the other: `calls.pipeline` has their order."""

from __future__ import annotations

from anaphora.daemon.calls.call import AppCall, CallOutcome


class CallStep:
    """One step of all calls of a daemon: what a call carries is in the call. A step leaves out what
    it has nothing to do in."""

    name = ""

    async def before(self, call: AppCall) -> None:
        """On the way to the provider. Raises where the call may not go on."""

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        """On the way back. Never raises: an answer that has arrived goes to its app."""

    def behind(self, call: AppCall) -> None:
        """Behind the answer: nobody waits for it. Never raises."""
