"""The rates of grants: requests and tokens a minute of each app, over all nodes.

admission = await rates.admit(app, tokens)     raises GrantRateLimited
rates.correct(admission, billed)               when the call's tokens are known
"""

from __future__ import annotations

from anaphora.errors import GrantRateLimited, NotGranted

from .shared_state import MinuteLimit, SharedState, Taken
from .values import App


class GrantRates:
    """The rates of all apps of a daemon."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared

    async def admit(self, app: App, tokens: int) -> Taken:
        """Counts a call of so many tokens, estimated input and largest output together. Raises
        `GrantRateLimited` with the exact time to wait, and counts nothing then; `NotGranted` for
        more tokens than the grant allows in any minute."""
        grant = app.grant.llm
        requests, most = grant.requests_per_minute, grant.tokens_per_minute
        if most is not None and tokens > most:
            raise NotGranted(
                f"the call may take {tokens} tokens; tokens_per_minute of the grant is {most}"
            )
        if requests == 0:
            raise NotGranted("requests_per_minute of the grant is 0")
        limit = MinuteLimit(requests=requests, tokens=most)
        taken = await self._shared.take(f"app {app.id}", limit, tokens)
        if not taken.wait:
            return taken
        name = f"{taken.by}_per_minute"
        value = requests if taken.by == "requests" else most
        raise GrantRateLimited(
            f"{name} of the grant is {value}; try again in {taken.wait:.2f} s",
            limit=name,
            retry_after=taken.wait,
        )

    def correct(self, taken: Taken, tokens: int) -> None:
        """Counts the tokens that a call really took; 0 where it was not sent."""
        self._shared.correct(taken, tokens)
