"""The headers and query fields that pass between app and provider, and those that the daemon adds.

Everything else is dropped: app tokens, cookies, `x-forwarded-*`, organisation names, and rate
limits, which would show an app how much others use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from urllib.parse import parse_qsl, urlencode

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.daemon.access.checks import is_beta_granted
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.faces import face_of
from anaphora.errors import RequestRejected
from anaphora.values import Notice
from anaphora.wire.response_headers import request_id_in

REQUEST_ID = "anaphora-request-id"
NOTICES = "anaphora-notices"
VERDICT = "anaphora-verdict"
COST = "anaphora-cost-usd"
PROVIDER_REQUEST_ID = "anaphora-provider-request-id"
"""The provider's id of the request, for its support."""
PROVIDER = "anaphora-provider"
"""The provider or route that answered; in a request, the one that should."""

BETA_NOT_GRANTED = "beta_not_granted"
"""Code of the notice about a dropped beta."""

#: Options of InvokeModel, and those that change nothing but the answer.
_OPTION = "x-amzn-bedrock-"
_IGNORED = frozenset(f"{_OPTION}{name}" for name in ("accept", "trace", "request-metadata"))
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")
#: Form of request ids that pass; other values are dropped.
_ID = re.compile(r"[\w.:/=+-]{1,200}", re.ASCII)
_BETA = re.compile(r"[\w.=:-]{1,100}", re.ASCII)
#: Passed headers of a provider's response.
_RESPONSE = frozenset(("openai-processing-ms", "openai-version", "anthropic-version"))
#: Passed headers of a provider's response that is a file.
_FILE_RESPONSE = frozenset(("content-type", "content-disposition"))
_FILE_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?charset=[\w-]+)?", re.ASCII)
#: Query fields of requests about stored objects.
_QUERY = frozenset("after before limit order include include[]".split())
_QUERY_VALUE = re.compile(r"[\w.,:@\[\]/-]{0,256}", re.ASCII)
#: Maximum length of a header that the daemon writes.
_MOST = 4096
#: Its part reserved for the notice about those that did not fit.
_FOR_THE_LAST = 100
_encode = json.JSONEncoder(separators=(",", ":")).encode
_encode_fast = msgspec.json.Encoder().encode


def forwarded_headers(
    headers: Mapping[str, str], wire: str, grant: LlmGrant
) -> tuple[tuple[tuple[str, str], ...], tuple[Notice, ...]]:
    """Headers of a request that go upstream, and notices about dropped betas."""
    forwarded: list[tuple[str, str]] = []
    notices: list[Notice] = []
    face = face_of(wire)
    version = headers.get(face.version_header)
    if version is not None:
        if _VERSION.fullmatch(version) is None:
            name = face.version_header
            reason = f"{name} must be a date like {face.default_version}, not {version[:40]!r}"
            raise RequestRejected(reason, status=400, param=name)
        forwarded.append((face.version_header, version))
    named = headers.get(face.beta_header)
    if not named:
        return tuple(forwarded), ()
    granted = []
    for each in named.split(","):
        beta = each.strip()
        if is_beta_granted(beta, grant) and _BETA.fullmatch(beta):
            granted.append(beta)
        elif beta:
            text = f"the beta {beta[:60]!r} is not granted; left out"
            notices.append(Notice(BETA_NOT_GRANTED, text, face.beta_header))
    if granted:
        forwarded.append((face.beta_header, ",".join(dict.fromkeys(granted))))
    return tuple(forwarded), tuple(notices)


def check_options(headers: Mapping[str, str]) -> None:
    """Raises `RequestRejected` for options of InvokeModel that are not forwarded: without its
    guardrail, a call would not be what the app asked for."""
    for name, value in headers.items():
        if name.startswith(_OPTION) and name not in _IGNORED and value not in ("default", ""):
            reason = f"{name}: is not supported on InvokeModel here; use Converse"
            raise RequestRejected(reason, status=400, param=name)


def forwarded_query(query_string: bytes) -> str:
    """The query fields of a request about a stored object that go upstream."""
    pairs = [
        (name, value)
        for name, value in query_fields(query_string)
        if name in _QUERY and _QUERY_VALUE.fullmatch(value)
    ]
    return urlencode(pairs)


def query_fields(query_string: bytes) -> list[tuple[str, str]]:
    """Raises if a field is given twice, unless its name marks it as a list."""
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64
        )
    except ValueError:
        raise RequestRejected("the query is not valid", status=400) from None
    names = [name for name, _ in pairs if not name.endswith("[]") and name != "include"]
    for name in names:
        if names.count(name) > 1:
            raise RequestRejected(f"the query field {name[:64]!r} is given twice", status=400)
    return pairs


def returned_headers(pairs: Iterable[tuple[str, str]], *, file: bool = False) -> dict[str, str]:
    """Headers of a provider's response that the app gets."""
    returned = {}
    for name, value in pairs:
        name = name.lower()
        if name not in _RESPONSE and not (file and name in _FILE_RESPONSE):
            continue
        if value.isascii() and value.isprintable():
            returned[name] = value
    if file and not _FILE_TYPE.fullmatch(returned.get("content-type", "")):
        returned["content-type"] = "application/octet-stream"
    return returned


def provider_request_id(pairs: Iterable[tuple[str, str]]) -> str | None:
    """The provider's id of a request, from the headers of its response."""
    return request_id_in(dict(pairs))


def own_headers(
    wire: str,
    request_id: str,
    *,
    provider: str = "",
    notices: tuple[Notice, ...] = (),
    verdict: Verdict | None = None,
    cost_usd: Decimal | None = None,
    provider_request_id: str | None = None,
) -> dict[str, str]:
    """The daemon's own headers about a call."""
    headers = {face_of(wire).request_id_header: request_id, REQUEST_ID: request_id}
    if provider:
        headers[PROVIDER] = provider
    if provider_request_id and _ID.fullmatch(provider_request_id):
        headers[PROVIDER_REQUEST_ID] = provider_request_id
    if notices:
        headers[NOTICES] = notices_text(notices)
    if verdict is not None:
        headers[VERDICT] = verdict_text(verdict)
    if cost_usd is not None:
        headers[COST] = f"{cost_usd:f}"
    return headers


def notices_text(notices: tuple[Notice, ...]) -> str:
    """Notices as a JSON list in ASCII. A last one counts those that did not fit."""
    written: list[str] = []
    size = 2
    for index, notice in enumerate(notices):
        fields = {"code": notice.code, "message": notice.message}
        text = _ascii(fields | ({"path": notice.path} if notice.path else {}))
        size += len(text) + 1
        if size > _MOST - _FOR_THE_LAST:
            rest = f"{len(notices) - index} more notices do not fit in this header"
            written.append(_ascii({"code": "more_notices", "message": rest}))
            break
        written.append(text)
    return f"[{','.join(written)}]"


def verdict_text(verdict: Verdict) -> str:
    """A verdict as a JSON object in ASCII, without any text of the prompt."""
    fields: dict[str, object] = {"result": verdict.result}
    if verdict.causes:
        fields["cause"] = verdict.causes[0].kind
    if verdict.lost:
        fields["lost_tokens"] = verdict.lost
    if verdict.remedy is not None:
        fields["remedy"] = verdict.remedy.fields()
    fields["text"] = verdict.describe(excerpts=False)
    text = _ascii(fields)
    if len(text) > _MOST:
        del fields["text"]
        text = _ascii(fields)
    return text


def _ascii(value: object) -> str:
    """JSON in printable ASCII characters."""
    try:
        text = _encode_fast(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        text = ""
    if not text or not text.isascii():
        text = _encode(value)
    return text.replace("\x7f", "\\u007f")
