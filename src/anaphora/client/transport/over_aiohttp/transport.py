"""Sending a request, and the pool of connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import lru_cache
from weakref import WeakSet

import aiohttp
from yarl import URL

import anaphora
from anaphora.client.config.values import Timeouts
from anaphora.client.transport import Outgoing
from anaphora.client.transport.patience import Patience
from anaphora.errors import InvalidRequest, Transport

from .addresses import place, read_proxy, read_url, trusting
from .answer import AiohttpAnswer
from .parts import Body, Response
from .problems import before_answer, final

#: How long an unused connection is kept; below the minute after which load balancers drop theirs.
KEPT = 45.0


class AiohttpTransport:
    """Pooled HTTP/1.1. `proxy` is an address, with credentials where needed; `ca` a file of
    certificates to trust instead of the system's.

    There are at most so many `connections` at once; a request that finds none free waits for one as
    long as it may take to connect.
    """

    def __init__(
        self, proxy: str | None = None, ca: str | None = None, connections: int = 256
    ) -> None:
        self._proxy = None if proxy is None else read_proxy(proxy)
        self._ssl = True if ca is None else trusting(ca)
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._patience: Patience
        self._closed = False
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._open: WeakSet[AiohttpAnswer] = WeakSet()

    async def send(self, outgoing: Outgoing) -> AiohttpAnswer:
        session = self._session or self._start()
        url = read_url(outgoing.url)
        timeouts, patience = outgoing.timeouts, self._patience
        body = Body(outgoing.method, outgoing.body, timeouts, patience)
        try:
            response = await session.request(
                outgoing.method,
                url,
                data=body if outgoing.body else None,
                headers=outgoing.headers,
                timeout=_client_timeout(timeouts, body.watched),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as problem:
            raise self._failure(problem, url, body) from None
        except ValueError:
            # A control character in a header; not in the library's words, they may quote it.
            raise InvalidRequest("cannot be sent as they are", path="headers") from None
        except (asyncio.CancelledError, RuntimeError):
            if self._closed and not _is_cancelled():
                raise self._gone(url) from None
            raise
        finally:
            patience.end(body)
        answer = AiohttpAnswer(response, url, outgoing, patience)
        if response.connection is not None:
            self._open.add(answer)
        return answer

    async def close(self) -> None:
        """Returns when every socket is closed. What is under way fails with `Transport`."""
        self._closed = True
        session, self._session = self._session, None
        if session is None:
            return
        self._patience.close()
        for answer in list(self._open):
            await answer.close()
        for sock in list(self._sockets):
            try:
                # A peer that does not read must not keep us waiting for the last write.
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                if sock.fileno() != -1:
                    self._sockets.discard(sock)  # not connected yet: its sender closes it
        await session.close()
        while any(sock.fileno() != -1 for sock in self._sockets):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _start(self) -> aiohttp.ClientSession:
        if self._closed:
            raise final("the client is closed", "connect")
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            keepalive_timeout=KEPT,
            ssl=self._ssl,
            socket_factory=self._socket,
        )
        self._patience = Patience(asyncio.get_running_loop())
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": f"anaphora/{anaphora.__version__}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            response_class=Response,
            proxy=self._proxy,
            trust_env=False,
        )
        return self._session

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, proto, _, _ = address
        sock = socket.socket(family=family, type=kind, proto=proto)
        self._sockets.add(sock)
        return sock

    def _failure(self, problem: Exception, url: URL, body: Body) -> Transport:
        """What it means that no answer's head could be had."""
        if self._closed:
            return self._gone(url)
        phase, what = before_answer(body.expired or problem, body.timeouts)
        message = f"{self._way(problem, url)}: {what}"
        if isinstance(problem, ssl.SSLCertVerificationError):
            return final(message, phase)
        return Transport(message, phase=phase)

    def _gone(self, url: URL) -> Transport:
        return final(f"{place(url)}: the client was closed meanwhile", "connect")

    def _way(self, problem: Exception, url: URL) -> str:
        if self._proxy is None:
            return place(url)
        if isinstance(problem, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
            return f"proxy {place(self._proxy)} to {place(url)}"
        return f"{place(url)} through proxy {place(self._proxy)}"


@lru_cache(maxsize=128)
def _client_timeout(timeouts: Timeouts, watched: bool) -> aiohttp.ClientTimeout:
    first_byte = None if watched else timeouts.first_byte
    return aiohttp.ClientTimeout(total=None, connect=timeouts.connect, sock_read=first_byte)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
