"""Which hosts a server answers as, and which web pages may send it requests.

A page of another site can send requests to a local server. Two checks keep it out:

- The Host header must be a name of this server. A page whose own name was made to resolve to this
  machine (DNS rebinding) may read replies, but its browser sends that name.
- `Origin` and `Sec-Fetch-Site`, which only browsers send, must be those of a page of this server.

Programs send neither `Origin` nor `Sec-Fetch-Site`, and are not affected by the second check.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping

from anaphora.errors import Forbidden, InvalidRequest, RequestRejected, Upstream

#: A host and an optional port; IPv6 addresses are in brackets.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{0,5})?")
_NAME = re.compile(r"[a-z0-9_.-]+|[0-9a-f:.]+")
#: How much of a header an error repeats.
_SHOWN = 100
#: Host headers that are known to be allowed; a few for each way to reach a server.
_REMEMBERED = 64
#: Every name is allowed.
ANY = "*"


class HostGuard:
    """Checks the Host and Origin of requests to a server that is bound to `host`.

    Allowed are `host` itself, `localhost`, loopback addresses and the names in `allowed`; where the
    server is bound to more than the loopback interface, every IP address: a page cannot have one
    as its own name. `pages` are paths that a link on another site may open.
    """

    def __init__(
        self,
        host: str,
        allowed: Iterable[str] = (),
        *,
        pages: Collection[str] = (),
        hint: str = "allow it when the server is started",
    ) -> None:
        self._bound = host.lower()
        self._allowed = frozenset(_checked_name(name) for name in allowed)
        self._pages = frozenset(pages)
        self._hint = hint
        bound = _address(self._bound)
        self._any_address = self._bound != "localhost" if bound is None else not _is_loopback(bound)
        self._known: set[str] = set()

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Upstream | None:
        """Why a request is refused; None where it is allowed. Header names are lowercase."""
        host = headers.get("host", "").lower()
        if host not in self._known:
            if (problem := self._host_refusal(host)) is not None:
                return problem
            if len(self._known) < _REMEMBERED:
                self._known.add(host)
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin.lower().partition("://")[2] != host:
            return Forbidden(
                f"requests from pages of other sites are refused (Origin: {origin[:_SHOWN]})",
                status=403,
            )
        if site in (None, "same-origin", "none") or self._opens_page(method, path, headers):
            return None
        return Forbidden(
            f"requests from pages of other sites are refused (Sec-Fetch-Site: {site[:_SHOWN]})",
            status=403,
        )

    def _host_refusal(self, host: str) -> Upstream | None:
        match = _HOST.fullmatch(host)
        if match is None:
            reason = f"Host is not a host name: {host[:_SHOWN]!r}" if host else "no Host header"
            return RequestRejected(reason, status=400)
        name = match[1].strip("[]").rstrip(".")
        if self._allows(name):
            return None
        return Forbidden(f"the host {name[:_SHOWN]!r} is not allowed: {self._hint}", status=403)

    def _allows(self, name: str) -> bool:
        if name in ("localhost", self._bound) or name in self._allowed or ANY in self._allowed:
            return True
        address = _address(name)
        return address is not None and (self._any_address or _is_loopback(address))

    def _opens_page(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a link on another page is followed: that page does not see the response."""
        return (
            method == "GET"
            and path in self._pages
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )


def _checked_name(name: str) -> str:
    plain = name.strip().lower().strip("[]").rstrip(".")
    if plain != ANY and _NAME.fullmatch(plain) is None:
        reason = f"{name!r} is not a host name; write it without scheme and port: emulator, or *"
        raise InvalidRequest(reason, path="allow_hosts")
    return plain


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(name: str) -> _Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(address: _Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
