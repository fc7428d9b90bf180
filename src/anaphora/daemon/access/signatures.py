"""Authenticates requests by AWS signatures (SigV4), with key pairs that are derived from tokens.

    keys = directory.key_pair(row)                       shown once, by `anaphora apps add --aws`
    app = await signatures.app_of(call, signed)

A signature covers the body that was received. Each is accepted once, on one node: accepted ones are
in the store until their time ends. Without the store none is accepted.

botocore signs neither the number of an attempt nor any other number: a retry within the same second
has the signature of the first attempt. So the signature of a call that cost nothing may be used
again after an answer that SDKs retry (`RETRIED`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from anaphora import catalog
from anaphora.client.credentials.sigv4 import SignatureProblem, SignedRequest, verify
from anaphora.daemon.off_loop import LARGE, OffLoop
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import App
from anaphora.errors import StoreUnavailable

from .checks import UnreadBytes
from .identity import Directory

if TYPE_CHECKING:
    from anaphora.daemon.calls.call import AppCall

#: Headers that change what is done with a request: they must be signed if they are sent.
_READ_HERE = (
    "anaphora-provider", "anthropic-beta", "anthropic-version", "content-encoding", "content-type",
    "openai-beta",
)  # fmt: skip
RETRIED = frozenset((429, 500, 502, 503, 504))
"""Statuses after which botocore sends a request again."""
#: Signatures after which those whose time has ended are removed, and the difference of the clocks
#: of nodes, in seconds.
_REMOVED_EVERY, _SKEW = 256, 60.0


class Signatures:
    """Checks signatures. Used from one event loop."""

    def __init__(
        self, directory: Directory, store: Store, unread: UnreadBytes, off_loop: OffLoop
    ) -> None:
        self._directory = directory
        self._store = store
        self._unread = unread
        self._off_loop = off_loop
        self._count = itertools.count(1)
        clouds = [row.cloud for row in catalog.dialects().rows if row.cloud is not None]
        self._services = {one.service for one in clouds if one.kind == "aws"}
        """With models: a signature for another service was not made for a call."""

    async def app_of(self, call: AppCall, signed: SignedRequest) -> App:
        """The app that signed a request, whose body is read for it. Raises `Unauthenticated`,
        `GrantRateLimited` after too many failures, and `StoreUnavailable`."""
        directory, exchange, peer = self._directory, call.exchange, call.peer
        assert exchange is not None
        assert peer is not None
        app = directory.signing_app(signed, peer)
        # Not verified yet: only who knows the app's access key can use up its share.
        exchange.account = self._unread.account(app.id)
        if app.grant.llm.max_body_bytes is not None:
            exchange.max_body = min(exchange.max_body, app.grant.llm.max_body_bytes)
        body = exchange.body = await exchange.read_body()
        if len(body) > LARGE:
            digest = await self._off_loop.run(app.id, lambda: sha256(body).hexdigest())
        else:
            digest = sha256(body).hexdigest()
        found = verify(signed._replace(body_hash=digest), directory.secret_of, directory.now())
        if isinstance(found, SignatureProblem):
            raise directory.refused_signature(peer, found)
        if found.service not in self._services:
            text = "Credential should be scoped to correct service: 'bedrock'."
            raise directory.refused_signature(peer, _invalid(text))
        unsigned = _unsigned(signed, found.names)
        if unsigned:
            text = f"The header {unsigned} must be signed."
            raise directory.refused_signature(peer, _invalid(text))
        if not await self._is_new(found.signature, found.until, call.request_id):
            text = (
                "The signature was used before: each request needs its own. Equal requests of one"
                " second have the same signature, unless a header that differs is signed."
            )
            raise directory.refused_signature(peer, _invalid(text))
        call.signature = found.signature
        return app

    async def _is_new(self, signature: str, until: float, request_id: str) -> bool:
        """Whether no request had this signature before. A row is the first request's: another one
        does not replace it."""
        store = self._store
        if next(self._count) % _REMOVED_EVERY == 0:
            await store.remove_old_handles("signature", self._directory.now() - _SKEW)
        row = HandleRow(kind="signature", id=signature, app=request_id, provider="", created=until)
        await store.add_handle(row)
        if await store.handle("signature", signature, request_id) is not None:
            return True
        if store.problem is not None:
            raise StoreUnavailable("signatures cannot be recorded at the moment")
        return False


def _invalid(message: str) -> SignatureProblem:
    return SignatureProblem("InvalidSignatureException", message)


def _unsigned(request: SignedRequest, names: Sequence[str]) -> str:
    """A header that has to be signed and is not; empty if there is none."""
    given = {name for name, _ in request.headers}
    return next((name for name in _READ_HERE if name in given and name not in names), "")
