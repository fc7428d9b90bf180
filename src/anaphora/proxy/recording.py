"""An upstream that answers from a folder of recordings, and records what is missing there.

player = Player("recordings", "once")
with running(default_routes(), upstream=RecordedUpstream(player)) as proxy:
    ...
player.report
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from anaphora.client.transport.decoding import ACCEPT_ENCODING
from anaphora.errors import FixtureIntegrityFailed, NoFixture, Phase, RequestRejected, Transport
from anaphora.replay.fixture import Fixture
from anaphora.replay.keys import ReplayRequest
from anaphora.replay.player import Player, Recording
from anaphora.replay.transport import RecordedPieces, ReplayedBody, current_headers, look_up
from anaphora.traffic.calls import KEPT_BYTES, Headers, UpstreamRequest

from .routes import NetworkUpstream, ResponseSource, RouteTable, UpstreamResponse
from .signing import RequestSigner


class RecordedUpstream:
    """Answers from `player`, and forwards requests to be recorded to `upstream`: the network by
    default. With `pace`, streams are replayed at their recorded speed.

    A request without a recording gets an error that names the nearest one, in the format of its
    provider, with a status that clients do not retry.
    """

    def __init__(
        self, player: Player, upstream: ResponseSource | None = None, *, pace: bool = False
    ) -> None:
        self.player = player
        self._pace = pace
        self._upstream = upstream

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        if not isinstance(request.body, bytes):
            return await self._send_unrecorded(request)
        asked = _asked(request, request.body)
        try:
            answer = await look_up(self.player, asked)
        except NoFixture as problem:
            return _refusal(request, str(problem))
        except FixtureIntegrityFailed as problem:
            self.player.note_miss(asked, str(problem))
            return _refusal(request, str(problem))
        if isinstance(answer, Fixture):
            body = ReplayedBody(answer, self._pace)
            await body.begin()
            return ReplayedUpstreamResponse(body)
        return await self._record(request, answer)

    async def close(self) -> None:
        try:
            if self._upstream is not None:
                await self._upstream.close()
        finally:
            await asyncio.to_thread(self.player.flush)

    async def _send_unrecorded(self, request: UpstreamRequest) -> UpstreamResponse:
        """For a body that is too large to keep."""
        reason = f"the request is larger than {KEPT_BYTES // 1024**2} MB, and is not recorded"
        if self.player.mode == "none":
            return _refusal(request, reason)
        self.player.fail(_asked(request, b""), reason)
        return await self._network().send(request)

    async def _record(self, request: UpstreamRequest, recording: Recording) -> UpstreamResponse:
        try:
            response = await self._network().send(_readable(request))
        except Transport as problem:
            recording.finish(failure=problem.phase)
            raise
        except BaseException:
            recording.discard()
            raise
        return RecordedUpstreamResponse(response, recording)

    def _network(self) -> ResponseSource:
        if self._upstream is None:
            self._upstream = NetworkUpstream(signer=RequestSigner())
        return self._upstream


def _asked(request: UpstreamRequest, body: bytes) -> ReplayRequest:
    return ReplayRequest(
        method=request.method,
        provider=request.route.provider,
        path=request.path,
        query=request.query,
        headers=dict(request.headers),
        body=body,
    )


def _readable(request: UpstreamRequest) -> UpstreamRequest:
    """The request, accepting only encodings that can be decompressed here: recordings are searched
    for secrets."""
    headers = tuple(
        (name, ACCEPT_ENCODING if name == "accept-encoding" and value != "identity" else value)
        for name, value in request.headers
    )
    return msgspec.structs.replace(request, headers=headers)


def _refusal(request: UpstreamRequest, reason: str) -> UpstreamResponse:
    """A miss, as an error of the provider."""
    codec = RouteTable([request.route]).codec(
        request.route.prefix + request.path, dict(request.headers)
    )
    status, headers, body = codec.write_error(RequestRejected(reason, status=400))
    fields = {**headers, "x-should-retry": "false", "content-length": str(len(body))}
    return CompleteUpstreamResponse(status, tuple(fields.items()), body)


class CompleteUpstreamResponse:
    """A complete response made by the proxy."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status, self.headers, self._body = status, headers, body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def close(self) -> None:
        pass


class ReplayedUpstreamResponse:
    """A recorded response."""

    def __init__(self, body: ReplayedBody) -> None:
        self._body = body
        self.status = body.fixture.status
        self.headers: Headers = _framed(body.fixture)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body

    async def close(self) -> None:
        pass


def _framed(fixture: Fixture) -> Headers:
    """Adds the length to a body recorded in one piece; several pieces are sent as they are."""
    # Recordings of the client have text instead of the proxy's bytes.
    headers = tuple((name, _as_bytes(value)) for name, value in current_headers(fixture))
    if fixture.failure and not fixture.pieces:
        # Broke off before its first byte: then the head is not sent either.
        return (*headers, ("content-length", "1"))
    if len(fixture.pieces) > 1 or fixture.failure or fixture.method == "HEAD":
        return headers
    return (*headers, ("content-length", str(len(fixture.payload))))


def _as_bytes(value: str) -> str:
    """A header's value in latin-1, the encoding in which the proxy writes headers."""
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


class RecordedUpstreamResponse:
    """A response that is recorded while it is relayed."""

    def __init__(self, response: UpstreamResponse, recording: Recording) -> None:
        self._response, self._recording = response, recording
        self._pieces = RecordedPieces(response, recording, self._finish, KEPT_BYTES)

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.headers

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def close(self) -> None:
        self._finish("body")
        await self._response.close()

    def _finish(self, failure: Phase | Literal[""] = "") -> None:
        self._recording.finish(self._response.status, self._response.headers, failure)
