"""The answer to one request while it is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from anaphora.errors import Phase

from .fixture import Fixture, FixtureHeaders, FixturePiece
from .keys import ReplayRequest, RequestKey


class Recording:
    """Collects the answer to one request."""

    def __init__(
        self,
        request: ReplayRequest,
        key: RequestKey,
        exact: str,
        variables: Mapping[str, str],
        ended: Callable[[Recording], None],
        fail: Callable[[ReplayRequest, str], None],
    ) -> None:
        """`ended` is called at the end, `fail` with the reason if nothing can be recorded."""
        self.request, self.key, self.exact = request, key, exact
        self.fixture: Fixture | None = None
        self.is_over = False
        self._variables, self._ended, self._fail = variables, ended, fail
        self._started, self._recorded = time.perf_counter(), time.time()
        self._pieces: list[FixturePiece] = []

    def add(self, data: bytes) -> None:
        """Add a piece of the response's body that has just arrived."""
        self._pieces.append(FixturePiece(time.perf_counter() - self._started, data))

    def finish(
        self, status: int = 0, headers: FixtureHeaders = (), failure: Phase | Literal[""] = ""
    ) -> None:
        """The response is complete, or the connection failed in phase `failure`. Calls after the
        first have no effect."""
        if self.is_over:
            return
        request = self.request
        self.fixture = Fixture(
            key=self.key.key,
            exact=self.exact,
            provider=request.provider,
            model=self.key.model,
            method=request.method.upper(),
            path=request.path,
            query=request.query,
            request=request.body,
            status=status,
            headers=headers,
            pieces=tuple(self._pieces),
            failure=failure,
            recorded=self._recorded,
            variables=dict(self._variables),
        )
        self._end()

    def discard(self, reason: str = "") -> None:
        """End without a recording: no response began, or it cannot be stored for `reason`, which
        the report names."""
        if self.is_over:
            return
        if reason:
            self._fail(self.request, reason)
        self._end()

    def _end(self) -> None:
        self.is_over = True
        self._pieces = []
        self._ended(self)
