"""Answers requests from a folder of recordings, and records missing ones.

    mode   a request that is recorded       one that is not
    none   is replayed                      NoFixture
    once   is replayed                      NoFixture; in a new or empty folder it is recorded
    new    is replayed                      is recorded
    all    is recorded again                is recorded

A repeated request gets the recorded answers in their order, failed attempts included, and then
`NoFixture`, or with `repeat="last"` the last one again. Requests are recorded in the order in which
they were sent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from anaphora.errors import AnaphoraError, InvalidRequest, Io, NoFixture, Phase
from anaphora.wording import counted

from .fixture import Fixture, FixtureHeaders, FixturePiece
from .keys import ReplayRequest, RequestKey, exact_digest, key_of
from .nearest import NearestSearch, VariableIndex
from .redact import Redaction, fixture_of
from .rules import MatchRules, settings_of
from .signing import SigningKey
from .store import FixtureStore
from .variables import (
    BoundVariable,
    differing_variables,
    named_in,
    present_variables,
    with_values,
)

Mode: TypeAlias = Literal["none", "once", "new", "all"]
Repeat: TypeAlias = Literal["never", "last"]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Replayed and recorded requests of a player, and its problems."""

    replayed: int
    recorded: int
    misses: tuple[str, ...]
    """Requests without a recording, each with the nearest one and the first difference."""
    failures: tuple[str, ...]
    """Why answers were not recorded."""
    variables: tuple[BoundVariable, ...] = ()
    """Variables, such as directories, that differ from the recordings."""


class Player:
    """Thread-safe. `close` waits until everything is written."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        mode: Mode = "once",
        *,
        repeat: Repeat = "never",
        rules: str | os.PathLike[str] | None = None,
        secrets: Iterable[str] = (),
        sign: SigningKey | None = None,
        signed_by: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`rules` is a file like replay.toml; its rules apply besides those of the folder and the
        shipped ones. `secrets` are removed from recordings, like the credentials of requests.
        `sign` and `signed_by` are those of `FixtureStore.open`. `variables` are the place and the
        day of this run; by default those of this process (`present_variables`)."""
        given = {"mode": (mode, Mode), "repeat": (repeat, Repeat)}
        for name, (value, kind) in given.items():
            if value not in get_args(kind):
                reason = f"must be one of {', '.join(get_args(kind))}, not {value!r}"
                raise InvalidRequest(reason, path=name)
        self.mode, self.repeat = mode, repeat
        path = Path(folder)
        self.store = FixtureStore.open(path, create=mode != "none", sign=sign, signed_by=signed_by)
        settings = settings_of(path, self.store.rules, None if rules is None else Path(rules))
        self.rules = MatchRules(settings.rule, shipped=settings.shipped_rules)
        self._redaction = Redaction(secrets, [row.pattern for row in settings.redact])
        self._records_all = mode == "all" or (mode == "once" and not len(self.store))
        self._lock = threading.Lock()
        self._asked: dict[str, int] = {}
        """How often each key was requested."""
        self.variables: Mapping[str, str] = {}
        if settings.shipped_rules:
            self.variables = present_variables() if variables is None else variables
        self._index = VariableIndex(self.store, self.rules, self.variables)
        self._nearest = NearestSearch(self.store, self.rules, self._index)
        self._bound: dict[BoundVariable, None] = {}
        """Variables that differ from the recorded ones."""
        self._waiting: dict[str, list[Recording]] = {}
        self._old: dict[str, list[str]] = {}
        """In mode `all`: the recordings that new ones replace, by key."""
        if mode == "all":
            for entry in self.store.entries:
                self._old.setdefault(entry.key, []).append(entry.path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._replayed = self._recorded = 0
        self._misses: list[str] = []
        self._failures: list[str] = []
        self._raised = 0
        """How many failures `close` has already raised."""

    def __repr__(self) -> str:
        return f"<Player {self.store.folder}, mode {self.mode}>"

    @property
    def report(self) -> ReplayReport:
        with self._lock:
            return ReplayReport(
                replayed=self._replayed,
                recorded=self._recorded,
                misses=tuple(self._misses),
                failures=tuple(self._failures),
                variables=tuple(self._bound),
            )

    # ── Looking up ───────────────────────────────────────────────────────────────────────────────

    def look_up(self, request: ReplayRequest) -> Fixture | Recording:
        """The recorded answer; if the request is to be sent, a `Recording` for its answer. Raises
        `NoFixture`."""
        found = self.find(request)
        if isinstance(found, RequestKey):
            raise self.miss(request, found)
        return found

    def find(self, request: ReplayRequest) -> Fixture | Recording | RequestKey:
        """Like `look_up`, but returns the key of a request that is neither recorded nor to be
        sent."""
        exact = exact_digest(request)
        if not self._records_all:
            recorded = self.store.key_of_exact(exact)
            fixture = None if recorded is None else self._next(recorded, request=False)
            if fixture is not None:
                return fixture
        key = key_of(request, self.rules, self._index.present)
        if self._records_all:
            return self._begin(request, key, exact)
        fixture = self._next(key.key) or self._next_by_variables(request)
        if fixture is not None:
            return with_values(fixture, self._bind(fixture, request, key))
        return self._begin(request, key, exact) if self.mode == "new" else key

    def _next_by_variables(self, request: ReplayRequest) -> Fixture | None:
        """The next recorded answer to a request that differs only in variables."""
        if not len(self.store):
            return None
        places = self._index.find(self._shown(request))
        with self._lock:
            left = [one for one in places if one.position >= self._asked.get(one.key, 0)]
            if left:
                self._asked[left[0].key] = left[0].position + 1
            elif places and self.repeat == "last":
                left = [places[-1]]
            else:
                return None
            self._replayed += 1
        return self.store.fixture(left[0].path)

    def _bind(
        self, fixture: Fixture, request: ReplayRequest, key: RequestKey
    ) -> tuple[BoundVariable, ...]:
        """The variables that differ between a recording and a request."""
        bound = differing_variables(fixture, request.body, self.rules, key.replaced, self.variables)
        with self._lock:
            self._bound |= dict.fromkeys(bound)
        return bound

    def _next(self, key: str, *, request: bool = True) -> Fixture | None:
        """The next recorded answer to a request; None after the last. Without `request`, its body
        is left out."""
        fixtures = self.store.by_key(key, request=request)
        with self._lock:
            number = self._asked.get(key, 0)
            if number >= len(fixtures):
                if not fixtures or self.repeat != "last":
                    return None
                number = len(fixtures) - 1
            else:
                self._asked[key] = number + 1
            self._replayed += 1
        return fixtures[number]

    def miss(self, request: ReplayRequest, key: RequestKey) -> NoFixture:
        """The error of a request without a recording, with the first difference to the nearest one.
        Reads all recordings the first time."""
        shown = self._shown(request)
        times = len(self.store.by_key(key.key)) or len(self._index.find(shown))
        near = None if times else self._nearest.find(shown)
        if times:
            reason = (
                f"it is recorded {counted(times, 'time')} and was sent once more;"
                ' repeat="last" repeats the last answer'
            )
        elif near is None:
            reason = "nothing like it is recorded"
        else:
            fixture, difference = near
            differs = "only hidden parts differ" if difference is None else difference
            reason = f"nearest is {fixture.method} {fixture.path} ({fixture.key[:12]}): {differs}"
            self._bind(fixture, request, key)
        self.note_miss(request, reason)
        return NoFixture(model=key.model, prompt_hash=key.key, reason=reason)

    def note_miss(self, request: ReplayRequest, reason: str) -> None:
        """Note why a request is not answered from the recordings."""
        named = self._named(request)
        with self._lock:
            self._misses.append(f"{named}: {reason}")

    def _shown(self, request: ReplayRequest) -> ReplayRequest:
        """The request without secrets."""
        redaction = self._redaction.with_credentials(tuple(request.headers.items()), request.query)
        return msgspec.structs.replace(
            request,
            path=redaction.text(request.path),
            query=redaction.query(request.query),
            body=redaction.body(request.body),
        )

    def _named(self, request: ReplayRequest) -> str:
        """Method and path of a request, for messages."""
        return f"{request.method} {self._shown(msgspec.structs.replace(request, body=b'')).path}"

    # ── Recording ────────────────────────────────────────────────────────────────────────────────

    def _begin(self, request: ReplayRequest, key: RequestKey, exact: str) -> Recording:
        with self._lock:
            self._asked[key.key] = self._asked.get(key.key, 0) + 1
            recording = Recording(request, key, exact, self.variables, self.ended, self.fail)
            self._waiting.setdefault(key.key, []).append(recording)
        return recording

    def ended(self, recording: Recording) -> None:
        """Write recordings that have ended, in the order in which they began."""
        with self._lock:
            waiting = self._waiting.get(recording.key.key, [])
            while waiting and waiting[0].is_over:
                self._submit(waiting.pop(0))
            if not waiting:
                self._waiting.pop(recording.key.key, None)

    def _submit(self, recording: Recording) -> None:
        if recording.fixture is None:
            return
        try:
            self._writer.submit(self._write, recording)
        except RuntimeError:  # the interpreter is shutting down
            self._failures.append(f"{self._named(recording.request)}: the program was ending")

    def _write(self, recording: Recording) -> None:
        request, fixture = recording.request, recording.fixture
        assert fixture is not None
        recording.fixture = None
        try:
            headers = tuple(request.headers.items())
            stored = fixture_of(fixture, request_headers=headers, redaction=self._redaction)
            named = named_in(fixture.variables, stored.request, stored.payload)
            old = self._replaced_by(request, fixture.key)
            self.store.add(msgspec.structs.replace(stored, variables=named))
            if old:
                self.store.remove(old)
        except Exception as problem:
            # The program already has its answer; `close` raises.
            known = isinstance(problem, AnaphoraError)
            self.fail(request, str(problem) if known else type(problem).__name__)
        else:
            with self._lock:
                self._recorded += 1

    def _replaced_by(self, request: ReplayRequest, key: str) -> list[str]:
        """The recordings of a request before this run, also those of another directory."""
        if not self._old:
            return []
        keys = [key, *(place.key for place in self._index.find(self._shown(request)))]
        return [path for each in keys for path in self._old.pop(each, ())]

    def fail(self, request: ReplayRequest, reason: str) -> None:
        """Note why the answer to a request is not recorded."""
        named = self._named(request)
        with self._lock:
            self._failures.append(f"{named}: {reason}")

    def flush(self) -> None:
        """Wait until every recording that has ended is written or has failed."""
        with self._lock:
            for key, waiting in list(self._waiting.items()):
                for recording in waiting:
                    if recording.is_over:
                        self._submit(recording)
                self._waiting[key] = [each for each in waiting if not each.is_over]
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """`flush`; raises `Io` if an answer could not be recorded since the last time."""
        self.flush()
        with self._lock:
            new, self._raised = self._failures[self._raised :], len(self._failures)
        if new:
            count = counted(len(new), "answer was", "answers were")
            raise Io(f"{count} not recorded: {new[0]}")


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
