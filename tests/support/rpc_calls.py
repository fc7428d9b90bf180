"""JSON-RPC calls to a daemon, as an app makes them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.reading import calls

from .daemon import TestedDaemon
from .waiting import PATIENCE


class RpcClient:
    """Sends messages to `POST /rpc`."""

    def __init__(self, daemon: TestedDaemon, app: str | None = "demo", *, socket: bool = False):
        # Without certificates, which take longer to load than a call takes.
        transport = httpx.HTTPTransport(uds=str(daemon.socket) if socket else None, verify=False)
        url = "http://localhost" if socket else daemon.url
        headers = {} if app is None else daemon.headers(app)
        self._http = httpx.Client(
            transport=transport, base_url=url, headers=headers, timeout=PATIENCE
        )

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def post(self, data: bytes, **headers: str) -> httpx.Response:
        given = {"content-type": "application/json", **headers}
        return self._http.post("/rpc", content=data, headers=given)

    def send(self, message: Any) -> Any:
        """The response to a message; None where there is none."""
        response = self.post(json.dumps(message).encode())
        assert response.status_code == (200 if response.content else 204), response.text
        return json.loads(response.content) if response.content else None

    def respond(self, method: str, /, **params: Any) -> Any:
        response = self.send(request(method, **params))
        assert (response["jsonrpc"], response["id"]) == ("2.0", 1)
        return response

    def call(self, method: str, /, **params: Any) -> Any:
        """The result."""
        response = self.respond(method, **params)
        assert "error" not in response, response
        return response["result"]

    def error(self, method: str, /, **params: Any) -> Any:
        response = self.respond(method, **params)
        assert "result" not in response, response
        return response["error"]

    def lines(self, message: Any) -> Iterator[Any]:
        """The messages of a streamed response, as they arrive."""
        content = json.dumps(message).encode()
        headers = {"content-type": "application/json"}
        with self._http.stream("POST", "/rpc", content=content, headers=headers) as response:
            for line in response.iter_lines():
                yield json.loads(line)


def request(method: str, number: Any = 1, /, **params: Any) -> dict[str, Any]:
    """A request with the id `number`."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def audit_rows(daemon: TestedDaemon) -> list[AuditEnvelope]:
    """The audit rows of all calls so far."""
    services, done = daemon.daemon.services, threading.Event()

    def finish() -> None:
        services.calls.finish_answered()
        done.set()

    daemon.daemon._loop.call_soon_threadsafe(finish)
    assert done.wait(PATIENCE)
    assert services.audit is not None
    services.audit.flush()
    return [row for _, row in calls(daemon.home / "audit")]
