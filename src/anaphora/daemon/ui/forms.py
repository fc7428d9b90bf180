"""Checks of a request to the dashboard before it is answered: its method and query, where a form
comes from, and the fields of the form."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_plus

from anaphora.dashboard.page_site import PAGE_HEADERS
from anaphora.errors import Forbidden, RequestRejected, TooLarge
from anaphora.redaction import hides_arguments, looks_like_key
from anaphora.serving.exchange import CompleteResponse, HttpExchange

_FORM = "application/x-www-form-urlencoded"
_LONGEST_QUERY, _MOST_FIELDS = 32_768, 64
_LARGEST_FORM = 16 * 1024
#: Names of fields that a token could be in.
_TOKEN_NAMES = frozenset(
    ("token", "key", "api_key", "apikey", "access_token", "admin_token", "auth", "password")
)


PLAIN = {**PAGE_HEADERS, "content-type": "text/plain; charset=utf-8"}
READ = ("GET", "HEAD")
"""The methods of pages."""


class MethodNotAllowed(RequestRejected):
    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"{method[:20]} is not allowed here, but {self.allowed}", status=405)


def check_method(exchange: HttpExchange, *allowed: str) -> None:
    if exchange.method not in allowed:
        raise MethodNotAllowed(exchange.method, allowed)


class TokenInAddress(RequestRejected):
    """An address with a token: browsers and proxies keep addresses."""


@hides_arguments
def check_query(query: bytes) -> None:
    """Raises `TokenInAddress`, and `RequestRejected` for a query that no page of ours has."""
    if len(query) > _LONGEST_QUERY:
        reason = f"the address is too long: its query has more than {_LONGEST_QUERY:,} bytes"
        raise RequestRejected(reason, status=414)
    fields = query.split(b"&")
    if len(fields) > _MOST_FIELDS:
        reason = f"the query of the address has more than {_MOST_FIELDS} fields"
        raise RequestRejected(reason, status=400)
    for field in fields:
        name, _, value = unquote_plus(field.decode("latin-1")).partition("=")
        if name.strip().lower() in _TOKEN_NAMES or looks_like_key(value.strip()):
            raise TokenInAddress(
                "The address has a token or a key in it, where browsers and proxies keep it. It"
                " was not used. Revoke it if it is real, and log in with the form.",
                status=400,
            )


def check_origin(exchange: HttpExchange) -> None:
    """Whether a form was sent from a page of this server. `HostGuard` has compared the Origin with
    the host; a browser sends at least one of both headers. Raises `Forbidden`."""
    site = exchange.headers.get("sec-fetch-site")
    if site == "same-origin" or (site is None and "origin" in exchange.headers):
        return
    raise Forbidden(
        "A form is accepted only from a page of this server: the request has neither an Origin nor"
        " `Sec-Fetch-Site: same-origin`."
        if site is None
        else "A form is accepted only from a page of this server.",
        status=403,
    )


@hides_arguments
async def read_form(exchange: HttpExchange) -> dict[str, str]:
    """The fields of a form. Raises `RequestRejected` where it is none, or has a field twice."""
    declared = exchange.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdecimal()):
        raise RequestRejected("a form has a content-length", status=411)
    if len(declared) > 9 or int(declared) > _LARGEST_FORM:
        raise TooLarge(f"a form has at most {_LARGEST_FORM:,} bytes", status=413)
    if exchange.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise RequestRejected(f"a form is sent as {_FORM}", status=415)
    body = await exchange.read_body()
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise RequestRejected("the form cannot be read", status=400) from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise RequestRejected("the form has a field twice", status=400)
    return form


def redirect(path: str, headers: Mapping[str, str] | None = None) -> CompleteResponse:
    return CompleteResponse(303, {**PLAIN, "location": path, **(headers or {})}, b"")
