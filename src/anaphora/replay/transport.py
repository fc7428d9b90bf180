"""Recording and replaying for the client.

    async with AsyncClient.from_env(transport=anaphora.replay.Recorder("recordings")) as client:
        await client.send("Hello?", model="claude-sonnet-4-5")

The first run calls the provider and records its answers; every later one is answered from the
folder, without a network. `player.py` describes the modes.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Literal, cast
from urllib.parse import urlsplit

from anaphora.client.transport import HttpRequest, HttpResponse, HttpTransport
from anaphora.errors import Phase, Transport

from .fixture import Fixture, FixtureHeaders
from .keys import ReplayRequest, RequestKey
from .player import Mode, Player, Recording, Repeat, ReplayReport
from .redact import NOT_STORED
from .signing import SigningKey

#: Larger bodies are compared in another thread.
_LARGE = 256 * 1024


class Recorder:
    """A transport that answers from a folder of recordings, or records there the answers of another
    transport: the client's own, unless `transport` is given."""

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
        pace: bool = False,
        transport: HttpTransport | None = None,
    ) -> None:
        """The folder is verified here: `FixtureIntegrityFailed` if a recording was changed.
        `pace` replays streams at their recorded speed, instead of at once; the other arguments are
        those of `Player`."""
        self.player = Player(
            folder,
            mode,
            repeat=repeat,
            rules=rules,
            secrets=secrets,
            sign=sign,
            signed_by=signed_by,
        )
        self._pace = pace
        self._transport = transport
        self._own: HttpTransport | None = None

    def __repr__(self) -> str:
        return f"<Recorder {self.player.store.folder}, mode {self.player.mode}>"

    @property
    def report(self) -> ReplayReport:
        return self.player.report

    def over(self, transport: HttpTransport) -> HttpTransport:
        """This recorder with the network connection that a client uses for one of its
        providers."""
        return RecordedTransport(self.player, self._transport or transport, self._pace)

    async def send(self, request: HttpRequest) -> HttpResponse:
        if self._own is None:
            transport = self._transport
            if transport is None:
                from anaphora.client.transport.over_aiohttp import AiohttpTransport

                transport = AiohttpTransport()
            self._own = self.over(transport)
        return await self._own.send(request)

    async def close(self) -> None:
        """Wait until all answers are written. Raises `Io` if one could not be recorded. A client
        that uses the recorder does this when it is closed."""
        if self._own is not None:
            await self._own.close()
        else:
            await asyncio.to_thread(self.player.close)


class RecordedTransport:
    """A recorder and the transport below it."""

    def __init__(self, player: Player, transport: HttpTransport, pace: bool) -> None:
        self._player, self._transport, self._pace = player, transport, pace

    async def send(self, request: HttpRequest) -> HttpResponse:
        answer = await look_up(self._player, _replay_request(request))
        if isinstance(answer, Fixture):
            replay = ReplayedBody(answer, self._pace)
            await replay.begin()
            return ReplayedResponse(replay)
        try:
            response = await self._transport.send(request)
        except Transport as problem:
            answer.finish(failure=problem.phase)
            raise
        except BaseException:
            answer.discard()
            raise
        return RecordedResponse(response, answer)

    async def close(self) -> None:
        try:
            await self._transport.close()
        finally:
            await asyncio.to_thread(self._player.close)


async def look_up(player: Player, request: ReplayRequest) -> Fixture | Recording:
    """Like `Player.look_up`, without blocking the event loop for large requests and misses."""
    if len(request.body) > _LARGE:
        return await asyncio.to_thread(player.look_up, request)
    found = player.find(request)
    if isinstance(found, RequestKey):
        raise await asyncio.to_thread(player.miss, request, found)
    return found


def _replay_request(request: HttpRequest) -> ReplayRequest:
    parts = urlsplit(request.url)
    path, _, query = request.path.partition("?")
    return ReplayRequest(
        method=request.method,
        provider=request.provider,
        path=path or parts.path,
        query=query or parts.query,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=request.body,
    )


# ── Recording ────────────────────────────────────────────────────────────────────────────────────


class RecordedPieces:
    """The pieces of a response, recorded while they are read. `finish` is called at the end, with
    the phase of a failure. Above `most_bytes` nothing is recorded."""

    def __init__(
        self,
        response: AsyncIterable[bytes],
        recording: Recording,
        finish: Callable[[Phase | Literal[""]], None],
        most_bytes: int | None = None,
    ) -> None:
        self._response, self._recording = response, recording
        self._finish, self._most_bytes = finish, most_bytes
        self._pieces: AsyncIterator[bytes] | None = None
        self._size = 0

    def __aiter__(self) -> RecordedPieces:
        return self

    async def __anext__(self) -> bytes:
        if self._pieces is None:
            self._pieces = self._response.__aiter__()
        try:
            data = await anext(self._pieces)
        except StopAsyncIteration:
            self._finish("")
            raise
        except Transport as problem:
            self._finish(problem.phase)
            raise
        self._size += len(data)
        if self._most_bytes is None or self._size <= self._most_bytes:
            self._recording.add(data)
        else:
            limit = self._most_bytes // 1024**2
            self._recording.discard(f"the response is larger than {limit} MB")
        return data


class RecordedResponse:
    """A response that is recorded while it is read."""

    def __init__(self, response: HttpResponse, recording: Recording) -> None:
        self._response, self._recording = response, recording
        self._pieces = RecordedPieces(response, recording, self._finish)

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        try:
            data = await self._response.read()
        except Transport as problem:
            self._finish(problem.phase)
            raise
        if data:
            self._recording.add(data)
        self._finish()
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def close(self) -> None:
        # A response that is not read to its end is recorded as interrupted there.
        self._finish("body")
        await self._response.close()

    def _finish(self, failure: Phase | Literal[""] = "") -> None:
        # The transport has decompressed the body.
        headers = tuple(
            pair for pair in self._response.headers.items() if pair[0] != "content-encoding"
        )
        self._recording.finish(self._response.status, headers, failure)


# ── Replaying ────────────────────────────────────────────────────────────────────────────────────


class ReplayedBody:
    """The pieces of a recorded response, at once or at their recorded pace."""

    def __init__(self, fixture: Fixture, pace: bool) -> None:
        self.fixture = fixture
        self._pace = pace
        self._started = 0.0
        self._pieces = iter(fixture.pieces)

    async def begin(self) -> None:
        """Raises `Transport` if no response began."""
        self._started = asyncio.get_running_loop().time()
        if not self.fixture.status:
            raise self._failure()

    def __aiter__(self) -> ReplayedBody:
        return self

    async def __anext__(self) -> bytes:
        """The next piece. Raises `Transport` if the response broke off."""
        for piece in self._pieces:
            if self._pace:
                now = asyncio.get_running_loop().time()
                await asyncio.sleep(max(0.0, self._started + piece.seconds - now))
            else:
                await asyncio.sleep(0)  # let other tasks run, as with a network
            if piece.data:
                return piece.data
        if self.fixture.failure:
            raise self._failure()
        raise StopAsyncIteration

    async def rest(self) -> bytes:
        """All pieces that are left."""
        data = []
        if not self._pace:
            await asyncio.sleep(0)
            data = [piece.data for piece in self._pieces]
        async for more in self:
            data.append(more)
        return b"".join(data)

    def _failure(self) -> Transport:
        phase = cast(Phase, self.fixture.failure or "first_byte")
        return Transport(f"recorded: the connection failed in phase {phase}", phase=phase)


class ReplayedResponse:
    """A recorded response, for the client."""

    def __init__(self, body: ReplayedBody) -> None:
        self._body = body
        self.status = body.fixture.status
        self.headers: Mapping[str, str] = joined(current_headers(body.fixture))

    async def read(self) -> bytes:
        return await self._body.rest()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body

    async def close(self) -> None:
        pass


def current_headers(fixture: Fixture) -> FixtureHeaders:
    """The headers to replay: a date in retry-after is moved to the present, and headers about the
    length and the connection are left out."""
    return tuple(
        (name, _moved(value, fixture.recorded) if name == "retry-after" else value)
        for name, value in fixture.headers
        if name.lower() not in NOT_STORED
    )


def _moved(value: str, recorded: float) -> str:
    try:
        until = email.utils.parsedate_to_datetime(value).timestamp()
    except ValueError:
        return value  # seconds
    return email.utils.formatdate(math.ceil(time.time() + until - recorded), usegmt=True)


def joined(headers: FixtureHeaders) -> dict[str, str]:
    """Repeated headers are joined with commas."""
    found: dict[str, str] = {}
    for name, value in headers:
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
