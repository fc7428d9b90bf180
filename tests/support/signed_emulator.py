"""An emulator that verifies AWS's signatures, as botocore would make them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from anaphora.emulator import Emulator, EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.server import EmulatorHandler
from anaphora.errors import Unauthenticated
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import HttpExchange
from anaphora.serving.server import running

_FIELD = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")


@contextlib.contextmanager
def signed_emulator(options: EmulatorOptions, access: str, secret: str) -> Iterator[Emulator]:
    """Requests that are signed need the signature of this key pair; bearer keys may be any."""
    engine, keys = Engine(options), Credentials(access, secret)
    app = ServedApp(_SignedHandler(engine, keys), HostGuard("127.0.0.1"))
    with running(app, host="127.0.0.1", port=0, extra="emulator", name="emulator") as address:
        yield Emulator(engine, address)


class _SignedHandler(EmulatorHandler):
    def __init__(self, engine: Engine, keys: Credentials) -> None:
        super().__init__(engine)
        self._keys = keys

    async def handle(self, exchange: HttpExchange) -> None:
        exchange.body = await exchange.read_body()
        given = exchange.headers.get("authorization", "")
        if given.startswith("AWS4-"):
            self._verify(exchange, dict(_FIELD.findall(given)))
        await super().handle(exchange)

    def _verify(self, exchange: HttpExchange, given: dict[str, str]) -> None:
        access, _, region, service, _ = given["Credential"].split("/")
        if access != self._keys.access_key:
            reason, code = "The security token is invalid.", "UnrecognizedClientException"
            raise Unauthenticated(reason, status=403, code=code)
        headers = {name: exchange.headers[name] for name in given["SignedHeaders"].split(";")}
        target = exchange.scope["raw_path"] + b"?" + exchange.query_string
        url = f"http://{headers['host']}{target.decode()}"
        request = AWSRequest(exchange.method, url, headers, exchange.body)
        request.context["timestamp"] = headers["x-amz-date"]
        signer = SigV4Auth(self._keys, service, region)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        if signer.signature(text, request) != given["Signature"]:
            reason, code = "The signature does not match.", "InvalidSignatureException"
            raise Unauthenticated(reason, status=403, code=code)
