"""Uploads of files by apps.

Anthropic and OpenAI accept one in a multipart body: a file and a few settings, without ids of other
files. Gemini's uploads are resumable: a request begins one, and others send the bytes. Google's
SDKs send no key with those: the address in the first answer is the credential. Ours contains a
random id that stands for the token that began the upload; the provider's address stays in the
daemon. Only the node that began an upload knows it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.access.handles import not_found
from anaphora.daemon.faces.face import Route
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import TOKEN_KEY, App
from anaphora.errors import AnaphoraError, NotFound, RequestRejected, TooLarge
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.wire.reading import DECODE_ERRORS

from .body import MAX_BODY, read_object
from .forwarding import Forwarder, ProviderResponse
from .headers import own_headers, query_fields

_MULTIPART = re.compile(r'multipart/form-data; *boundary="?([\w\'()+,./:=?-]{1,200})"?', re.ASCII)
#: Accepted fields of uploads. None of them names a stored object.
_PART_FIELDS = frozenset(("file", "purpose", "expires_after[anchor]", "expires_after[seconds]"))
_DISPOSITION = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="?([^";\r\n]*)"?'
    rb'((?:;[ \t]*filename\*?=[^\r\n]*)?)',
    re.IGNORECASE,
)  # fmt: skip
_SECOND_NAME = re.compile(rb'"[^"]*name[ \t]*\*?=|;[ \t]*name[ \t]*\*?[\d*]*=', re.IGNORECASE)
_OTHER_HEADER = re.compile(rb"content-(?:type|length):[^\r\n]*", re.IGNORECASE)
#: Maximum number of open uploads per app and in total; the oldest is forgotten first.
_MOST_OF_APP, _MOST = 32, 1024
#: Seconds after which an idle upload is forgotten.
_IDLE = 3600.0
#: Fields of a file that an app may set. Not the name: it would reveal whether another app has such
#: a file.
_FIELDS = frozenset("displayName display_name mimeType mime_type sizeBytes size_bytes".split())
_COMMANDS = ("upload", "upload, finalize", "finalize", "query", "cancel")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}(?:; *[\w-]+=[\w.-]+)?", re.ASCII)
_GRANULARITY, _RECEIVED = "x-goog-upload-chunk-granularity", "x-goog-upload-size-received"
_STATUS, _URL = "x-goog-upload-status", "x-goog-upload-url"


# ── In one body ──────────────────────────────────────────────────────────────────────────────────


def check_upload(content_type: str, data: bytes) -> None:
    """Raises `RequestRejected` for a body that two readers could read differently."""
    match = _MULTIPART.fullmatch(content_type)
    if match is None:
        reason = "the content type must be multipart/form-data with a boundary"
        raise RequestRejected(reason, status=415)
    mark = b"--" + match[1].encode()
    if not data.startswith(mark + b"\r\n"):
        raise _invalid("it must begin with its boundary")
    *parts, end = (b"\r\n" + data).split(b"\r\n" + mark)
    if end.strip(b" \t\r\n") != b"--":
        raise _invalid("it must end with its boundary")
    if data.count(mark) != len(parts):
        raise _invalid("its boundary occurs in a part")
    for part in parts[1:]:
        head, found, _ = part.partition(b"\r\n\r\n")
        if not found or not head.startswith(b"\r\n"):
            raise _invalid("a part has no header")
        _check_part(head[2:].split(b"\r\n"))


def _check_part(lines: list[bytes]) -> None:
    names = []
    for line in lines:
        match = _DISPOSITION.fullmatch(line)
        if match is not None and _SECOND_NAME.search(match[2]) is None:
            names.append(match[1].decode("latin-1"))
        elif _OTHER_HEADER.fullmatch(line) is None:
            raise _invalid("a header of a part is not known")
    if len(names) != 1:
        raise _invalid("a part must have one name")
    if names[0] not in _PART_FIELDS:
        known = ", ".join(sorted(_PART_FIELDS))
        raise _invalid(f"the field {names[0][:64]!r} is not one of {known}")


def _invalid(reason: str) -> RequestRejected:
    return RequestRejected(f"the upload is not valid: {reason}", status=400, param="file")


# ── Resumable ────────────────────────────────────────────────────────────────────────────────────


class OpenUpload(msgspec.Struct, eq=False):
    app: str
    owner: str
    token: Secret | None
    provider: str
    address: str
    """Path and query at the provider."""
    size: int
    used: float


class ResumableUploads:
    def __init__(
        self,
        store: Store,
        forwarder: Forwarder,
        clock: Callable[[], float],
        off_loop: OffLoop,
    ) -> None:
        self._store = store
        self._forwarder = forwarder
        self._clock = clock
        self._off_loop = off_loop
        self._open = BoundedMap[str, OpenUpload](_MOST)

    def token(self, exchange: HttpExchange) -> Secret | None:
        """For a request without a token: the token that began the upload it continues."""
        upload = None if self.begins(exchange) else self._open.get(_upload_id(exchange))
        return None if upload is None or self._is_over(upload) else upload.token

    def begins(self, exchange: HttpExchange) -> bool:
        return exchange.headers.get("x-goog-upload-command", "").strip() == "start"

    async def begin(
        self, exchange: HttpExchange, route: Route, app: App, provider: str, request_id: str
    ) -> None:
        headers = exchange.headers
        if headers.get("x-goog-upload-protocol") != "resumable":
            reason = "only resumable uploads are supported (X-Goog-Upload-Protocol: resumable)"
            raise RequestRejected(reason, status=400, param="x-goog-upload-protocol")
        size = _number(headers, "x-goog-upload-header-content-length")
        if size > MAX_BODY:
            raise TooLarge(f"the file is larger than {MAX_BODY:,} bytes", status=413)
        kind = headers.get("x-goog-upload-header-content-type", "application/octet-stream")
        if _MEDIA_TYPE.fullmatch(kind) is None:
            reason = f"not a media type: {kind[:60]!r}"
            raise RequestRejected(reason, status=400, param="x-goog-upload-header-content-type")
        body = await read_object(exchange, self._off_loop, app.id, b"{}")
        _check_file(body.value)
        answer = await self._forwarder.send(
            provider,
            "POST",
            route.path,
            headers=(
                ("content-type", "application/json"),
                ("x-goog-upload-protocol", "resumable"),
                ("x-goog-upload-command", "start"),
                ("x-goog-upload-header-content-length", str(size)),
                ("x-goog-upload-header-content-type", kind),
            ),
            body=body.data,
        )
        found = dict(answer.headers)
        token = exchange.scope.get(TOKEN_KEY)
        upload = OpenUpload(
            app.id, app.owner, token, provider, _address(found), size, self._clock()
        )
        query = urlencode({"upload_id": self._add(upload), "upload_protocol": "resumable"})
        base = f"{exchange.scope.get('scheme', 'http')}://{headers.get('host', '')}"
        returned = {_URL: f"{base}{exchange.path}?{query}", **_returned(found)}
        await _respond(exchange, route, request_id, returned, b"")

    async def proceed(
        self,
        exchange: HttpExchange,
        route: Route,
        app: App,
        request_id: str,
        reaches: Callable[[LlmGrant, str], bool],
    ) -> None:
        """`reaches` tells whether a grant still names the provider of the upload."""
        id = _upload_id(exchange)
        upload = self._open.get(id)
        if (
            upload is None
            or upload.owner != app.owner
            or self._is_over(upload)
            or not reaches(app.grant.llm, upload.provider)
        ):
            raise NotFound("no such upload", status=404, code="not_found_error")
        upload.used = self._clock()
        try:
            answer = await self._send(exchange, upload)
        except AnaphoraError:
            # Without it, Google's SDKs send the piece again forever.
            exchange.response_headers[_STATUS] = "final"
            raise
        returned = _returned(dict(answer.headers))
        if returned.get(_STATUS) != "active":
            self._open.pop(id, None)
        if returned.get(_STATUS) == "final":
            await self._register(answer, upload)
        await _respond(exchange, route, request_id, returned, answer.body)

    async def _send(self, exchange: HttpExchange, upload: OpenUpload) -> ProviderResponse:
        command = ", ".join(
            part.strip() for part in exchange.headers.get("x-goog-upload-command", "").split(",")
        )
        if command not in _COMMANDS:
            reason = f"X-Goog-Upload-Command must be one of start, {'; '.join(_COMMANDS)}"
            raise RequestRejected(reason, status=400, param="x-goog-upload-command")
        if exchange.headers.get("content-encoding", "identity") != "identity":
            raise RequestRejected("an upload must not be compressed", status=415)
        data = await exchange.read_body()
        headers = [("x-goog-upload-command", command)]
        if command.startswith("upload"):
            offset = _number(exchange.headers, "x-goog-upload-offset")
            if offset + len(data) > upload.size:
                reason = f"the file is larger than the {upload.size:,} bytes that were announced"
                raise RequestRejected(reason, status=400)
            headers += [
                ("x-goog-upload-offset", str(offset)),
                ("content-type", "application/octet-stream"),
            ]
        elif data:
            raise RequestRejected(f"{command} has no body", status=400)
        return await self._forwarder.send(
            upload.provider, "POST", upload.address, headers=tuple(headers), body=data, at_root=True
        )

    async def _register(self, answer: ProviderResponse, upload: OpenUpload) -> None:
        try:
            name = msgspec.json.decode(answer.body)["file"]["name"]
        except (*DECODE_ERRORS, KeyError, TypeError):
            raise not_found("file", "") from None
        await self._store.add_handle(
            HandleRow(
                kind="file",
                id=str(name).rpartition("/")[2],
                app=upload.owner,
                provider=upload.provider,
                created=self._clock(),
            )
        )

    def _is_over(self, upload: OpenUpload) -> bool:
        return upload.used < self._clock() - _IDLE

    def _add(self, upload: OpenUpload) -> str:
        known = self._open
        for id in [id for id, one in known.items() if self._is_over(one)]:
            del known[id]
        own = [id for id, one in known.items() if one.app == upload.app]
        if len(own) >= _MOST_OF_APP:
            del known[own[0]]
        id = secrets.token_urlsafe(32)
        known[id] = upload
        return id


def _upload_id(exchange: HttpExchange) -> str:
    try:
        return dict(query_fields(exchange.query_string)).get("upload_id", "")
    except RequestRejected:
        return ""


def _number(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise RequestRejected(f"{name} must be a number", status=400, param=name)
    return int(text)


def _check_file(value: dict[str, Any]) -> None:
    file = value.get("file", {})
    unknown = set(value) - {"file"}
    if isinstance(file, dict):
        unknown |= {f"file.{name}" for name in set(file) - _FIELDS}
    if unknown or not isinstance(file, dict):
        name = min(unknown, default="file")[:64]
        reason = f"{name} cannot be set here"
        if name == "file.name":
            reason += ": the provider names the file"
        raise RequestRejected(reason, status=400, param=name)


def _address(headers: Mapping[str, str]) -> str:
    """Path and query of the upload at the provider, without a key."""
    parts = urlsplit(headers.get(_URL, ""))
    query = [pair for pair in parse_qsl(parts.query) if pair[0] != "key"]
    if not parts.path.endswith("/files") or "upload_id" not in dict(query):
        raise NotFound("the provider's answer names no upload", status=502)
    return f"{parts.path}?{urlencode(query)}"


def _returned(headers: Mapping[str, str]) -> dict[str, str]:
    names = (_STATUS, _GRANULARITY, _RECEIVED)
    return {name: headers[name] for name in names if headers.get(name, "").isalnum()}


async def _respond(
    exchange: HttpExchange, route: Route, request_id: str, headers: dict[str, str], body: bytes
) -> None:
    head = {"content-type": "application/json", **headers, **own_headers(route.wire, request_id)}
    await exchange.respond(CompleteResponse(200, head, body))
