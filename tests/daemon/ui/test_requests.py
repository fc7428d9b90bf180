"""Requests to the dashboard that are no visit of a page: methods, headers, addresses, a stop."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon import TestedDaemon, llm_yaml, running_daemon
from support.ui import Markup, Viewer, viewer
from support.waiting import PATIENCE

from anaphora.daemon.access.identity import ADMIN
from anaphora.emulator.server import Emulator

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.fixture(scope="module")
def daemon(
    running_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    with running_daemon(tmp_path_factory.mktemp("requests"), running_emulator) as running:
        yield running


@pytest.fixture(scope="module")
def admin(daemon: TestedDaemon) -> Iterator[Viewer]:
    with viewer(daemon) as ui:
        ui.log_in(daemon.token(ADMIN))
        yield ui


@pytest.fixture
def visitor(daemon: TestedDaemon) -> Iterator[Viewer]:
    with viewer(daemon) as ui:
        yield ui


@pytest.mark.parametrize("path", ["/ui/login", "/ui/apps", "/ui/nothing", "/ui/apps/demo/rotate"])
def test_pages_have_headers_that_protect_them(admin: Viewer, path: str) -> None:
    page = admin.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert Markup(page.text).active() == []


def test_every_response_has_a_policy_and_a_type(admin: Viewer, visitor: Viewer) -> None:
    """Also what is no page: a browser must run nothing of it."""
    files = re.findall(r'(?:href|src)="(/ui/static/[^"]+)"', admin.get("/ui/login").text)
    assert len(files) == 2
    paths = ["/ui/audit/export", "/ui/audit/export?range=hour", "/ui/static/none.css", *files]
    answers = [admin.get(path) for path in paths]
    answers += [visitor.get("/ui/apps"), visitor.get("/ui/events")]
    with admin.client.stream("GET", "/ui/events?page=apps") as events:
        for answer in (*answers, events):
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-type"]


@pytest.mark.parametrize(
    "method, path, allowed",
    [
        ("DELETE", "/ui", "GET, HEAD"),
        ("POST", "/ui/apps", "GET, HEAD"),
        ("PUT", "/ui/login", "GET, HEAD, POST"),
        ("GET", "/ui/logout", "POST"),
        ("GET", "/ui/audit/verify", "POST"),
        ("DELETE", "/ui/apps/demo/revoke", "GET, HEAD, POST"),
        ("POST", "/ui/events", "GET, HEAD"),
        ("POST", "/ui/static/none.css", "GET, HEAD"),
    ],
)
def test_other_methods_are_refused(admin: Viewer, method: str, path: str, allowed: str) -> None:
    answer = admin.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/ui", "/ui/apps", "/ui/login", "/ui/nothing", "/ui/events"])
def test_head_is_a_page_without_its_body(admin: Viewer, path: str) -> None:
    head = admin.client.head(path)
    assert head.content == b""
    if path != "/ui/events":
        page = admin.get(path)
        assert head.status_code == page.status_code
        assert head.headers["content-type"] == page.headers["content-type"]


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing",
        "/ui/apps/nothing",
        "/ui/apps/nothing/revoke",
        "/ui/audit/nothing",
        "/ui/blocks/..%2f..%2frpc",  # its links would leave the dashboard
        "/ui/conversations/nothing",
        "/ui/providers/nothing",
    ],
)
def test_unknown_pages_are_not_found(admin: Viewer, visitor: Viewer, path: str) -> None:
    page = admin.get(path)
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    # Without a login, nothing tells which pages there are.
    assert visitor.get(path).status_code == 303


@pytest.mark.parametrize(
    "query, status",
    [
        ("a=" + "x" * 33_000, 414),
        ("&".join(f"a{n}=1" for n in range(100)), 400),
        ("range=century", 400),
        ("range=custom&since=yesterday", 400),
        ("text=" + "x" * 300, 400),
        ("outcome=fine", 400),
        ("text=%ff%00%f0&model=%E2%80%AE", 200),
    ],
)
def test_wrong_queries_say_what_is_wrong(admin: Viewer, query: str, status: int) -> None:
    page = admin.get(f"/ui/audit?{query}")
    assert page.status_code == status
    assert page.headers["content-type"].startswith("text/html")


def test_style_and_script_need_no_login(admin: Viewer, visitor: Viewer) -> None:
    assert visitor.get("/ui/static/nothing.css").status_code == 404
    for address in re.findall(r'(?:href|src)="(/ui/static/[^"]+)"', admin.get("/ui/login").text):
        assert visitor.get(address).status_code == 200


def test_link_on_another_site_opens_the_login(visitor: Viewer) -> None:
    """It comes without the cookie, which is `SameSite=Strict`."""
    headers = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    assert visitor.get("/ui", headers=headers).headers["location"] == "/ui/login"
    assert visitor.get("/ui/login", headers=headers).status_code == 200
    for path, changes in (("/ui/apps", {}), ("/ui", {"sec-fetch-dest": "iframe"})):
        answer = visitor.get(path, headers=headers | changes)
        assert answer.status_code == 403
        assert answer.headers["content-type"].startswith("text/html")


def test_other_host_is_refused_with_a_page(visitor: Viewer) -> None:
    answer = visitor.get("/ui", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert "allowed_hosts" in answer.text


@pytest.mark.parametrize(
    "content, kind, status",
    [
        (b"token=" + b"x" * 20_000, "application/x-www-form-urlencoded", 413),
        (b'{"token": "x"}', "application/json", 415),
        (b"token=%ff", "application/x-www-form-urlencoded", 400),
        (b"token=a&token=b", "application/x-www-form-urlencoded", 400),
        (b"token=\xff", "application/x-www-form-urlencoded", 400),
    ],
)
def test_what_is_no_form_is_refused(
    daemon: TestedDaemon, visitor: Viewer, content: bytes, kind: str, status: int
) -> None:
    headers = {"content-type": kind, "origin": daemon.url}
    answer = visitor.client.post("/ui/login", content=content, headers=headers)
    assert answer.status_code == status


def test_form_without_a_length_is_refused(daemon: TestedDaemon, visitor: Viewer) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": daemon.url}
    answer = visitor.client.post("/ui/login", content=iter([b"token=x"]), headers=headers)
    assert answer.status_code == 411


def test_metrics_count_the_dashboard_as_one_route(daemon: TestedDaemon, admin: Viewer) -> None:
    admin.get("/ui/apps")
    with daemon.client(ADMIN) as api:
        page = api.get("/metrics").text
    assert 'route="GET /ui",status="200"' in page
    assert "/ui/apps" not in page


def test_dashboard_can_be_switched_off(running_emulator: Emulator, tmp_path: Path) -> None:
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {"ui": {"enabled": False}}
    with (
        running_daemon(tmp_path, running_emulator, llm=llm) as daemon,
        daemon.client(None) as client,
    ):
        answer = client.get("/ui")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"


def test_stop_does_not_wait_for_open_pages(running_emulator: Emulator, tmp_path: Path) -> None:
    """Else it would wait for `drain_timeout`, ten minutes here."""
    opened, ended = threading.Event(), threading.Event()
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {"drain_timeout": 600}

    def watch(url: str, cookie: str) -> None:
        import httpx

        with (
            httpx.Client(base_url=url, timeout=PATIENCE) as client,
            client.stream("GET", "/ui/events?page=apps", headers={"cookie": cookie}) as stream,
        ):
            pieces = stream.iter_raw()
            next(pieces)
            opened.set()
            try:
                list(pieces)
            except httpx.HTTPError:
                pass
        ended.set()

    stack = contextlib.ExitStack()
    daemon = stack.enter_context(running_daemon(tmp_path, running_emulator, llm=llm))
    with viewer(daemon) as ui:
        ui.log_in(daemon.token(ADMIN))
        cookie = f"anaphora_ui={ui.cookie}"
        thread = threading.Thread(target=watch, args=(daemon.url, cookie), daemon=True)
        thread.start()
        assert opened.wait(PATIENCE)
    stopping = threading.Thread(target=stack.close, daemon=True)
    stopping.start()
    assert ended.wait(PATIENCE)
    stopping.join()
    thread.join()
    messages = [line["message"] for line in daemon.log_lines()]
    assert "stopping when running calls have ended" in messages
