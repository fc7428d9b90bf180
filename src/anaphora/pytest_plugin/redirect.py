"""The proxy of a test run. Each test chooses the destination of its calls (the provider, the
emulator, its recordings) and the judge."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from anaphora.errors import AnaphoraError, Transport
from anaphora.proxy.placeholders import with_placeholder_keys
from anaphora.proxy.programs import environment, upstreams_from
from anaphora.proxy.recording import RecordedUpstream
from anaphora.proxy.routes import NetworkUpstream, ResponseSource, UpstreamResponse, default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.proxy.signing import RequestSigner
from anaphora.replay.player import Mode, Player, Repeat, ReplayReport
from anaphora.traffic.calls import RelayedCall, UpstreamRequest
from anaphora.traffic.judging import Judge

if TYPE_CHECKING:
    from anaphora.emulator import Emulator

#: Seconds to wait for calls that are still open when a test ends, and while one stays open.
_SETTLE_SECONDS, _OPEN_SECONDS = 5.0, 0.5
_IDLE = (
    "no test is running that uses the fixture cache_contract, anaphora_replay or emulator; with"
    " anaphora_redirect = true only such tests can send calls"
)


class SwitchedUpstream:
    """An upstream chosen by each test; closed with the proxy, in its event loop."""

    def __init__(self) -> None:
        self.network = NetworkUpstream(signer=RequestSigner())
        self.local = NetworkUpstream()
        """To the emulator, which takes any signature."""
        self.current: ResponseSource | None = None

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        if self.current is None:
            raise Transport(_IDLE)
        return await self.current.send(request)

    async def close(self) -> None:
        await self.network.close()
        await self.local.close()


class EmulatorUpstream:
    """The emulator instead of every provider."""

    def __init__(self, network: ResponseSource, emulator: Emulator) -> None:
        self._network = network
        self._url = emulator.url
        self._host = emulator.url.partition("://")[2]

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        route = msgspec.structs.replace(
            request.route, upstream=f"{self._url}/{request.route.provider}"
        )
        headers = tuple(
            (name, self._host if name == "host" else value) for name, value in request.headers
        )
        return await self._network.send(
            msgspec.structs.replace(request, route=route, headers=headers)
        )

    async def close(self) -> None:
        """The network is closed with the proxy."""


class Redirect:
    """A proxy that runs until the end of the test run, and the variables that lead to it."""

    def __init__(self) -> None:
        self._resources = contextlib.ExitStack()
        self._upstream = SwitchedUpstream()
        self._judge: Judge | None = None
        self._since = 0.0
        """When that judge began: open calls of an earlier test do not count for it."""
        self._patience = _SETTLE_SECONDS
        self._environ = dict(os.environ)
        """The environment before anything was redirected."""
        self._set: dict[str, str] = {}
        """Variables that are set until the end of the test run."""
        self._emulator: Emulator | None = None
        routes = default_routes(upstreams_from(self._environ))
        self.proxy: Proxy = self._resources.enter_context(
            running(routes, upstream=self._upstream, observers=[self])
        )

    def call_ended(self, call: RelayedCall) -> None:
        if self._judge is not None and call.started >= self._since:
            # Numbered within the test.
            number = len(self._judge.calls) + 1
            self._judge.call_ended(msgspec.structs.replace(call, number=number))

    def variables(self, *, keys: bool) -> dict[str, str]:
        """The environment variables to set; with `keys`, also placeholders for missing keys."""
        changed, _ = environment(self.proxy, self._environ, ())
        if keys:
            changed = with_placeholder_keys(changed, ())
        return {name: value for name, value in changed.items() if self._environ.get(name) != value}

    def set_environment(self) -> None:
        """Sets the variables until the end of the test run."""
        self._set = self.variables(keys=True)
        os.environ.update(self._set)

    def restore_environment(self) -> None:
        for name in self._set:
            if name in self._environ:
                os.environ[name] = self._environ[name]
            else:
                os.environ.pop(name, None)
        self._set = {}

    def emulator(self) -> Emulator:
        """One emulator for all tests, started on first use."""
        if self._emulator is None:
            from anaphora import emulator

            self._emulator = self._resources.enter_context(emulator.running())
        return self._emulator

    @property
    def network(self) -> ResponseSource:
        """The providers themselves."""
        return self._upstream.network

    def emulated(self, emulator: Emulator) -> ResponseSource:
        return EmulatorUpstream(self._upstream.local, emulator)

    @contextlib.contextmanager
    def to(
        self, upstream: ResponseSource | None = None, judge: Judge | None = None
    ) -> Iterator[None]:
        """Sends the calls of a test there, and shows them to a judge."""
        before = self._upstream.current, self._judge, self._since
        if upstream is not None:
            self._upstream.current = upstream
        if judge is not None:
            self._judge, self._since = judge, time.time()
        try:
            yield
        finally:
            self.settle()
            self._upstream.current, self._judge, self._since = before

    def settle(self) -> bool:
        """Waits until every call of a test has ended and was judged. False if one stays open."""
        settled = self.proxy.settle(self._patience)
        self._patience = _SETTLE_SECONDS if settled else _OPEN_SECONDS
        return settled

    def close(self) -> None:
        self.restore_environment()
        self._resources.close()


# ── Recordings ───────────────────────────────────────────────────────────────────────────────────


#: The options of the marker `anaphora_replay`.
_OPTIONS = ("folder", "repeat", "rules")
_RECORD = "record the test with --anaphora-record=once"


class ReplayedTest:
    """The recordings of one test. `check` is called when the test has passed."""

    title = "recordings"

    def __init__(
        self,
        folder: Path,
        mode: Mode,
        options: dict[str, Any],
        live: ResponseSource,
        settle: Callable[[], bool],
    ) -> None:
        self.folder = folder
        self.mode = mode
        self._settle = settle
        if mode == "none" and not folder.is_dir():
            pytest.fail(f"no recordings in {folder}: {_RECORD}", pytrace=False)
        try:
            self._player = Player(folder, mode, **options)
        except AnaphoraError as problem:
            pytest.fail(str(problem), pytrace=False)
        self.upstream: ResponseSource = RecordedUpstream(self._player, live)

    @property
    def report(self) -> ReplayReport:
        """Numbers of replayed and recorded calls, and the misses."""
        self._settle()
        return self._player.report

    def problems(self) -> list[str]:
        """Problems, one paragraph each."""
        report = self.report
        found = []
        if report.misses:
            lines = (f"  {miss}" for miss in report.misses)
            found.append("\n".join([f"Not recorded in {self.folder}:", *lines, "", self._advice()]))
        if report.failures:
            found.append("\n  ".join(["Could not be recorded:", *report.failures]))
        return found

    def problems_so_far(self) -> list[str]:
        """Problems to report if the test itself failed."""
        return self.problems()

    def _advice(self) -> str:
        return (
            "--anaphora-record=new records these requests, --anaphora-record=all the whole test"
            " again. For texts that differ in every run, such as dates and directories, write match"
            " rules into replay.toml of the folder of recordings."
        )

    def check(self) -> None:
        """Fails the test if a request had no recording, or could not be recorded."""
        if problems := self.problems():
            pytest.fail("\n\n".join(problems), pytrace=False)

    def close(self) -> None:
        """Waits until everything is written."""
        try:
            self._player.close()
        except AnaphoraError as problem:
            pytest.fail(str(problem), pytrace=False)


def replay_options(options: dict[str, Any], test_file: Path) -> dict[str, Any]:
    """The options of a test's marker. Raises `pytest.UsageError` for an invalid one."""
    for name in options:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise pytest.UsageError(f"anaphora_replay has no {name!r}; it takes {known}")
    chosen = {name: value for name, value in options.items() if value is not None}
    chosen.pop("folder", None)
    if (repeat := chosen.get("repeat")) is not None and repeat not in get_args(Repeat):
        known = ", ".join(get_args(Repeat))
        raise pytest.UsageError(f"repeat is one of {known}, got {repeat!r}")
    if "rules" in chosen:
        chosen["rules"] = test_file.parent / chosen["rules"]
    return chosen
