"""Which hosts a server answers as, and which pages may send it requests."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import each_row

from anaphora.errors import InvalidRequest
from anaphora.serving.app import HostGuard

LOCAL, EVERY = "127.0.0.1", "0.0.0.0"


def refused(
    host: str,
    *,
    bound: str = LOCAL,
    allowed: tuple[str, ...] = (),
    method: str = "POST",
    **more: str,
) -> int | None:
    """The status of the refusal; None where the request is allowed."""
    guard = HostGuard(bound, allowed, pages=("/page",), hint="use --allow-host NAME")
    headers = {"host": host, **{name.replace("_", "-"): value for name, value in more.items()}}
    path = headers.pop("path", "/v1/messages")
    problem = guard.refusal(method, path, headers)
    assert (guard.refusal(method, path, headers) is None) == (problem is None), "remembered"
    return None if problem is None else problem.status


@each_row(
    "bound, host, status",
    [
        (LOCAL, "127.0.0.1:8787", None),
        (LOCAL, "localhost", None),
        (LOCAL, "LOCALHOST.:1", None),
        (LOCAL, "127.0.0.9:8787", None),
        (LOCAL, "[::1]:8787", None),
        (LOCAL, "[::ffff:127.0.0.1]", None),
        (LOCAL, "evil.example", 403),
        (LOCAL, "localhost.evil.example:8787", 403),
        (LOCAL, "127.0.0.1.evil.example", 403),
        (LOCAL, "10.0.0.5", 403),
        (LOCAL, "0.0.0.0:8787", 403),
        (LOCAL, "emulator:8787", 403),
        ("::1", "[::1]:8787", None),
        ("::1", "localhost:8787", None),
        (EVERY, "localhost:8787", None),
        (EVERY, "0.0.0.0:8787", None),
        (EVERY, "10.0.0.5:8787", None),
        (EVERY, "[fd00::5]:8787", None),
        (EVERY, "emulator:8787", 403),
        ("192.168.1.5", "192.168.1.5:8787", None),
        ("192.168.1.5", "evil.example", 403),
        ("my-machine", "my-machine:8787", None),
        (LOCAL, "", 400),
        (LOCAL, "a b", 400),
        (LOCAL, "user@localhost", 400),
        (LOCAL, "localhost/evil", 400),
        (LOCAL, "[::1", 400),
        (LOCAL, "localhost:http", 400),
        (LOCAL, "ünï", 400),
    ],
)
def test_hosts(bound: str, host: str, status: int | None) -> None:
    assert refused(host, bound=bound) == status


@each_row(
    "allowed, host, status",
    [
        ("emulator", "emulator:8787", None),
        ("Emulator.", "EMULATOR", None),
        ("emulator", "other", 403),
        ("emulator", "x.emulator", 403),
        ("*", "anything.example", None),
        ("*", "not a host", 400),
    ],
)
def test_names_can_be_allowed(allowed: str, host: str, status: int | None) -> None:
    assert refused(host, bound=EVERY, allowed=(allowed,)) == status


@each_row("name", ["http://emulator", "emulator:8787", "a/b", "", "*.example.com"])
def test_allowed_name_must_be_a_host_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match="allow_hosts"):
        HostGuard(LOCAL, [name])


def test_refusal_names_the_host_and_the_option() -> None:
    problem = HostGuard(EVERY, hint="use --allow-host NAME").refusal(
        "GET", "/", {"host": "emulator:8787"}
    )
    assert str(problem) == "the host 'emulator' is not allowed: use --allow-host NAME"


SAME, CROSS = "same-origin", "cross-site"


@each_row(
    "headers, status",
    [
        ({}, None),
        # Node's fetch sends this and nothing else.
        ({"sec_fetch_mode": "cors"}, None),
        ({"origin": "http://localhost:8787"}, None),
        ({"origin": "HTTP://LOCALHOST:8787", "sec_fetch_site": SAME}, None),
        ({"origin": "https://localhost:8787"}, None),
        ({"sec_fetch_site": "none"}, None),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://127.0.0.1:8787"}, 403),
        ({"origin": "localhost:8787"}, 403),
        ({"origin": "http://localhost:8787", "sec_fetch_site": CROSS}, 403),
        ({"sec_fetch_site": CROSS}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "wat"}, 403),
        ({"sec_fetch_site": CROSS, "sec_fetch_mode": "no-cors"}, 403),
    ],
)
@each_row("method", ["GET", "POST", "OPTIONS"])
def test_pages_of_other_sites_are_refused(
    headers: dict[str, Any], status: int | None, method: str
) -> None:
    assert refused("localhost:8787", method=method, **headers) == status


LINK = {"sec_fetch_site": CROSS, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@each_row(
    "change, status",
    [
        ({"method": "GET", "path": "/page"}, None),
        ({"method": "POST", "path": "/page"}, 403),
        ({"method": "GET", "path": "/v1/models"}, 403),
        ({"method": "GET", "path": "/page", "sec_fetch_dest": "iframe"}, 403),
        ({"method": "GET", "path": "/page", "sec_fetch_mode": "no-cors"}, 403),
        ({"method": "GET", "path": "/page", "origin": "https://evil.example"}, 403),
        ({"method": "GET", "path": "/page", "host": "evil.example"}, 403),
    ],
)
def test_link_on_another_site_opens_only_a_page(change: dict[str, Any], status: int | None) -> None:
    assert refused(**{"host": "localhost:8787", **LINK, **change}) == status
