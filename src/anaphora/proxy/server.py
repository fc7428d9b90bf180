"""A running proxy.

    from anaphora.proxy.routes import default_routes
    from anaphora.proxy.server import running

    with running(default_routes()) as proxy:
        client = anthropic.Anthropic(base_url=proxy.url_of("anthropic"))

It runs in its own thread until the block ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from anaphora.errors import InvalidRequest
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.server import ServerAddress, tuned_interpreter
from anaphora.serving.server import running as running_server
from anaphora.traffic.calls import ProxyRoute

from .observing import Observer, ObserverThread
from .relay import Pages, Place, RelayHandler
from .routes import NetworkUpstream, ResponseSource, RouteTable
from .signing import RequestSigner

if TYPE_CHECKING:
    from .forward import Forwarding, ForwardProxy

_EXTRA = "proxy"
_HINT = "start the proxy with allow_hosts=[NAME] for each name by which its clients reach it"
#: Seconds between two checks of open calls.
_LOOK = 0.002


class Proxy:
    def __init__(
        self,
        address: ServerAddress,
        routes: RouteTable,
        is_busy: Callable[[], bool] = lambda: False,
        forward: ForwardProxy | None = None,
    ) -> None:
        self.host = address.host
        self.port = address.port
        self.url = address.url
        self.routes = routes.routes
        self._is_busy = is_busy
        self._forward = forward

    @property
    def forward_url(self) -> str:
        """The value of HTTPS_PROXY for programs; it contains a password."""
        if self._forward is None:
            raise InvalidRequest("start the proxy with forwarding=… to reach it by HTTPS_PROXY")
        return self._forward.url

    def url_of(self, provider: str, *, signs: bool = True) -> str:
        """The base URL that replaces that of a provider or a cloud. Those of AWS contain a secret,
        unless `signs` is false: requests with it are signed."""
        for route in self.routes:
            if route.prefix and (route.name or route.provider) == provider:
                base = self.url + route.prefix
                secret = route.secret if signs else None
                return base if secret is None else f"{base}/{secret.reveal()}"
        known = ", ".join(route.name or route.provider for route in self.routes if route.prefix)
        raise InvalidRequest(f"no route to {provider!r}; there are {known}", path="provider")

    def settle(self, seconds: float) -> bool:
        """Waits until no call is open and observers have got every call. False if a call is still
        open after that time."""
        deadline = time.monotonic() + seconds
        while self._is_busy():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)
        return True


@contextlib.contextmanager
def running(
    routes: Iterable[ProxyRoute],
    *,
    upstream: ResponseSource | None = None,
    observers: Sequence[Observer] = (),
    place: Place | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    pages: Pages | None = None,
    allow_hosts: Iterable[str] = (),
    own_process: bool = False,
    forwarding: Forwarding | None = None,
) -> Iterator[Proxy]:
    """A proxy in its own thread, until the block ends and observers have got every call.

    `upstream` is the network by default, with requests to AWS signed by this process's credentials,
    and is closed at the end; `allow_hosts` is as for the
    emulator. With `own_process` the interpreter is tuned for the relay while it runs; with
    `forwarding` it is a forward proxy as well.
    """
    table = RouteTable(routes)
    seen_by = ObserverThread(observers)
    try:
        upstream = upstream or NetworkUpstream(signer=RequestSigner())
        handler = RelayHandler(table, upstream, seen_by, place, pages)
        guard = HostGuard(host, allow_hosts, hint=_HINT)
        websocket = handler.handle_websocket if handler.takes_websockets else None
        app = ServedApp(handler, guard, closed=handler.close, websocket=websocket)
        forward = None
        if forwarding is not None:
            from .forward import ForwardProxy

            forward = ForwardProxy(handler, table.routes, forwarding)
        server = running_server(
            app, host=host, port=port, extra=_EXTRA, name="proxy", beside=forward
        )
        with (
            tuned_interpreter() if own_process else contextlib.nullcontext(),
            server as address,
        ):
            yield Proxy(address, table, lambda: handler.is_busy or seen_by.is_busy, forward)
    finally:
        seen_by.close()
