"""Logins of the dashboard: a token becomes a cookie, which is valid there and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.certificates import write_certificate
from support.daemon import (
    GRANT,
    TestedDaemon,
    create_home,
    llm_yaml,
    running_daemon,
    started_daemon,
)
from support.ui import COOKIE, Viewer, viewer

from anaphora.daemon.access.identity import ADMIN
from anaphora.daemon.ui.access import own_path
from anaphora.emulator.server import Emulator

HOUR = 3_600.0


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def daemon(
    running_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory, clock: Clock
) -> Iterator[TestedDaemon]:
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {"failed_logins_per_minute": 5, "ui": {"session_hours": 4, "idle_minutes": 60}}
    apps = {"demo": GRANT, "other": GRANT}
    folder = tmp_path_factory.mktemp("login")
    options: dict[str, Any] = {"llm": llm, "extensions": apps, "clock": clock}
    with running_daemon(folder, running_emulator, **options) as running:
        yield running


@pytest.fixture
def ui(daemon: TestedDaemon, clock: Clock) -> Iterator[Viewer]:
    # Failed logins of the test before are forgotten.
    clock.now += 60
    with viewer(daemon) as one:
        yield one


@pytest.fixture
def admin(ui: Viewer, daemon: TestedDaemon) -> Viewer:
    assert ui.log_in(daemon.token(ADMIN)).status_code == 303
    return ui


def new_token(daemon: TestedDaemon, app: str, **options: Any) -> tuple[str, str]:
    """A further token of an app, and its id."""
    directory, loop = daemon.daemon.services.directory, daemon.daemon._loop
    made = asyncio.run_coroutine_threadsafe(directory.create_token(app, **options), loop).result()
    return made.token.reveal(), made.row.id


def revoke(daemon: TestedDaemon, token_id: str) -> None:
    directory, loop = daemon.daemon.services.directory, daemon.daemon._loop
    asyncio.run_coroutine_threadsafe(directory.revoke_token(token_id), loop).result()


# ── The cookie ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("who", [ADMIN, "demo"], ids=["administrator", "app"])
def test_token_becomes_a_cookie_for_the_dashboard_only(
    daemon: TestedDaemon, ui: Viewer, who: str
) -> None:
    assert not ui.is_logged_in()
    answer = ui.log_in(daemon.token(who))
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
    value, *flags = answer.headers["set-cookie"].split("; ")
    assert len(value) > len(f"{COOKIE}=") + 40
    assert flags == ["Max-Age=14400", "Path=/ui", "HttpOnly", "SameSite=Strict"]
    assert daemon.token(who) not in f"{answer.headers}{answer.text}"
    assert ui.is_logged_in()


@pytest.mark.parametrize("place", ["cookie", "authorization", "x-api-key", "key"])
@pytest.mark.parametrize("path", ["/rpc", "/metrics", "/v1/messages", "/v1/models"])
def test_cookie_is_no_token_of_the_api(
    daemon: TestedDaemon, admin: Viewer, path: str, place: str
) -> None:
    cookie = admin.cookie
    headers, query = {place: cookie}, {}
    if place == "cookie":
        headers = {"cookie": f"{COOKIE}={cookie}"}
    elif place == "authorization":
        headers = {place: f"Bearer {cookie}"}
    elif place == "key":
        headers, query = {}, {"key": cookie}
    method = "POST" if path in ("/rpc", "/v1/messages") else "GET"
    with daemon.client(None) as api:
        answer = api.request(method, path, headers=headers, params=query)
    assert answer.status_code in (401, 429)


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_token_in_a_header_opens_no_page(daemon: TestedDaemon, ui: Viewer, header: str) -> None:
    token = daemon.token(ADMIN)
    value = f"Bearer {token}" if header == "authorization" else token
    assert ui.get("/ui", headers={header: value}).status_code == 303


def test_owner_of_the_home_logs_in_as_well(daemon: TestedDaemon) -> None:
    """A browser cannot reach the socket, but a proxy in front of it can."""
    with daemon.socket_client() as owner:
        assert owner.get("/ui").headers["location"] == "/ui/login"


def test_cookies_of_other_servers_do_not_hide_the_session(
    daemon: TestedDaemon, admin: Viewer
) -> None:
    """Browsers send the cookies of all ports of a host, those of longer paths first."""
    with viewer(daemon) as app:
        app.log_in(daemon.token("demo"))
        values = [*(f"chosen-{number}" for number in range(10)), app.cookie, admin.cookie]
    header = "; ".join(f"{COOKIE}={value}" for value in values)
    with viewer(daemon) as ui:
        page = ui.get("/ui/apps/demo/revoke", headers={"cookie": header})
    assert page.status_code == 200


@pytest.mark.parametrize("how", ["tls", "behind_proxy"])
def test_cookie_is_secure_behind_tls(running_emulator: Emulator, tmp_path: Path, how: str) -> None:
    llm = llm_yaml(running_emulator.url)
    proxied = {
        "behind_proxy": True,
        "trusted_proxies": ["127.0.0.1"],
        "allowed_hosts": ["llm.example"],
    }
    headers = {"host": "llm.example", "origin": "https://llm.example"}
    options: dict[str, Any] = {"verify": False}
    if how == "tls":
        files = write_certificate(tmp_path, "server")
        llm["daemon"] |= {"tls": {"cert": str(files.cert), "key": str(files.key)}}
        headers = {}
    else:
        llm["daemon"] |= proxied
    with (
        running_daemon(tmp_path, running_emulator, llm=llm) as daemon,
        viewer(daemon, **options) as ui,
    ):
        answer = ui.post("/ui/login", {"token": daemon.token(ADMIN)}, headers=headers)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Secure-{COOKIE}=")
        assert "Secure" in cookie.split("; ")
        name, _, value = cookie.partition(";")[0].partition("=")
        page = ui.get("/ui", headers={**headers, "cookie": f"{name}={value}"})
        assert page.status_code == 200
        plain = ui.get("/ui", headers={**headers, "cookie": f"{COOKIE}={value}"})
        assert plain.status_code == 303


# ── Wrong tokens ─────────────────────────────────────────────────────────────────────────────────


def test_wrong_tokens_get_one_answer(daemon: TestedDaemon, ui: Viewer, clock: Clock) -> None:
    expired, _ = new_token(daemon, "demo", lifetime=1.0)
    revoked, revoked_id = new_token(daemon, ADMIN)
    revoke(daemon, revoked_id)
    clock.now += 2
    tokens = ["ana_wrong", expired, revoked, daemon.token()[:-1]]
    answers = []
    for token in tokens:
        answer = ui.log_in(token)
        answers.append((answer.status_code, answer.text))
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text
    assert len(set(answers)) == 1
    assert answers[0][0] == 401
    assert "This token is wrong, expired or revoked." in answers[0][1]
    assert "This is a key of Anthropic; " in ui.log_in("sk-ant-api03-4711").text


def test_failed_logins_are_limited_by_address(
    daemon: TestedDaemon, ui: Viewer, clock: Clock
) -> None:
    statuses = [ui.log_in("ana_wrong").status_code for _ in range(7)]
    assert statuses == [401] * 5 + [429] * 2
    limited = ui.log_in("ana_wrong")
    assert 1 <= int(limited.headers["retry-after"]) <= 60
    assert "too many failed logins" in limited.text
    # The API counts the same failures.
    with daemon.client(None) as api:
        assert api.get("/v1/models", headers={"x-api-key": "ana_wrong"}).status_code == 429
    # Others on this address may have a valid one.
    assert ui.log_in(daemon.token()).status_code == 303
    clock.now += 60
    assert ui.log_in("ana_wrong").status_code == 401


def test_token_in_an_address_is_refused(daemon: TestedDaemon, ui: Viewer) -> None:
    token = daemon.token(ADMIN)
    for query in ({"token": token}, {"key": token}, {"text": token}, {"Token": "x"}):
        for path in ("/ui", "/ui/login", "/ui/audit"):
            answer = ui.get(path, params=query)
            assert answer.status_code == 400
            assert "Revoke it" in answer.text
            assert token not in f"{answer.headers}{answer.text}"


# ── Where a login leads ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path", ["/ui", "/ui/", "/ui/apps", "/ui/audit?range=week&text=a%20b", "/ui?model=gpt-5.2"]
)
def test_login_leads_to_the_page_that_was_asked_for(
    daemon: TestedDaemon, ui: Viewer, path: str
) -> None:
    asked = ui.get(path)
    assert asked.status_code == 303
    form = ui.fields(asked.headers["location"])
    assert form.get("next", "/ui") == path.rstrip("/")
    answer = ui.post("/ui/login", {**form, "token": daemon.token(ADMIN)})
    assert answer.headers["location"] == path.rstrip("/")
    assert ui.get(answer.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "next_path",
    [
        "//evil.example",
        "https://evil.example/ui",
        "\\evil.example",
        "/\\evil.example",
        "/ui\\@evil.example",
        "/ui@evil.example",
        "/ui//evil.example",
        "/ui/..//evil.example",
        "/ui/%2e%2e//evil.example",
        "%2f%2fevil.example",
        "/%2fevil.example",
        "/ui/%2f%2fevil.example",
        "/ui/%5cevil.example",
        "javascript:alert(1)",
        "/uix",
        "/metrics",
        "/ui\r\nset-cookie: a=b",
        "/ui/\x00",
        "/ui/login",
        "/ui/logout",
        "/ui/" + "a" * 3_000,
        "/ui/ünicode",
    ],
)
def test_login_leads_nowhere_else(daemon: TestedDaemon, ui: Viewer, next_path: str) -> None:
    assert own_path(next_path) is None
    if len(next_path) < 2_000:
        assert "evil" not in ui.get("/ui/login", params={"next": next_path}).text
    answer = ui.log_in(daemon.token(ADMIN), next=next_path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")


# ── Ends of a session ────────────────────────────────────────────────────────────────────────────


def test_session_ends_when_it_is_not_used(admin: Viewer, clock: Clock) -> None:
    clock.now += 59 * 60
    assert admin.is_logged_in()
    clock.now += 59 * 60
    assert admin.is_logged_in()
    clock.now += 61 * 60
    assert not admin.is_logged_in()
    clock.now -= 61 * 60  # a clock that is set back opens none again
    assert not admin.is_logged_in()
    clock.now += 61 * 60


def test_session_ends_after_its_hours(admin: Viewer, clock: Clock) -> None:
    for _ in range(7):
        clock.now += HOUR / 2
        assert admin.is_logged_in()
    clock.now += HOUR / 2
    assert not admin.is_logged_in()


def test_logout_ends_the_session(admin: Viewer) -> None:
    cookie, csrf = admin.cookie, admin.fields("/ui/audit")["csrf"]
    answer = admin.post("/ui/logout", {"csrf": csrf})
    assert answer.headers["location"] == "/ui/login"
    assert f"{COOKIE}=; Max-Age=0; Path=/ui" in answer.headers["set-cookie"]
    assert admin.get("/ui", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 303


def test_login_makes_a_new_cookie_and_ends_the_one_before(
    daemon: TestedDaemon, admin: Viewer
) -> None:
    """A cookie that someone else put into the browser is worth nothing after the login."""
    before = admin.cookie
    admin.log_in(daemon.token(ADMIN))
    assert admin.cookie != before
    old = admin.get("/ui", headers={"cookie": f"{COOKIE}={before}"})
    assert old.status_code == 303
    with viewer(daemon) as fixed:
        fixed.client.cookies.set(COOKIE, "chosen-by-someone-else", path="/ui")
        answer = fixed.log_in(daemon.token())
        assert "chosen-by-someone-else" not in answer.headers["set-cookie"]


def test_changed_cookie_is_refused(daemon: TestedDaemon, admin: Viewer, clock: Clock) -> None:
    """Each of its fields is signed, and none can be taken from another login."""
    with viewer(daemon) as other:
        other.log_in(daemon.token("demo"))
        cookies = [one.cookie.split(".") for one in (admin, other)]
    assert len(cookies[0]) == 5
    for place in range(5):
        own, foreign = list(cookies[0]), cookies[1][place]
        own[place] = str(int(own[place]) + 1) if place in (2, 3) else foreign
        for value in (".".join(own), ".".join(cookies[0][: place + 1]), "." * place):
            if value != admin.cookie:
                answer = admin.get("/ui", headers={"cookie": f"{COOKIE}={value}"})
                assert answer.status_code == 303, value
    assert admin.is_logged_in()


def test_login_survives_a_restart(running_emulator: Emulator, tmp_path: Path) -> None:
    """Not with another key of the home."""
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {"ui": {"enabled": True}}
    tokens = create_home(tmp_path / "home", running_emulator, llm=llm)
    with started_daemon(tmp_path / "home", tokens) as daemon, viewer(daemon) as one:
        one.log_in(daemon.token(ADMIN))
        cookie = one.cookie
    with started_daemon(tmp_path / "home", tokens) as daemon, viewer(daemon) as one:
        one.client.cookies.set(COOKIE, cookie)
        assert one.is_logged_in()
    (tmp_path / "other").mkdir()
    with (
        running_daemon(tmp_path / "other", running_emulator, llm=llm) as daemon,
        viewer(daemon) as one,
    ):
        one.client.cookies.set(COOKIE, cookie)
        assert not one.is_logged_in()


def test_revoked_token_ends_its_sessions_at_once(daemon: TestedDaemon, ui: Viewer) -> None:
    token, token_id = new_token(daemon, ADMIN)
    ui.log_in(token)
    assert ui.is_logged_in()
    revoke(daemon, token_id)
    assert not ui.is_logged_in()


def test_expired_token_ends_its_sessions(daemon: TestedDaemon, ui: Viewer, clock: Clock) -> None:
    token, _ = new_token(daemon, ADMIN, lifetime=600.0)
    ui.log_in(token)
    clock.now += 601
    assert not ui.is_logged_in()


@pytest.mark.parametrize("end", ["revoked", "expired", "logout"])
def test_open_stream_ends_with_its_session(
    daemon: TestedDaemon, ui: Viewer, clock: Clock, end: str
) -> None:
    token, token_id = new_token(daemon, ADMIN, lifetime=600.0)
    ui.log_in(token)
    csrf = ui.fields("/ui/audit")["csrf"]
    with ui.client.stream("GET", "/ui/events", params={"page": "apps"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        pieces = stream.iter_raw()
        assert b"event: fragment" in next(pieces)
        if end == "revoked":
            revoke(daemon, token_id)
        elif end == "expired":
            clock.now += 601
        else:
            cookie = {"cookie": f"{COOKIE}={ui.cookie}"}
            with viewer(daemon) as second:
                second.post("/ui/logout", {"csrf": csrf}, headers=cookie)
        with contextlib.suppress(httpx.RemoteProtocolError):  # in the middle of the stream
            list(pieces)
    assert ui.get("/ui/events", params={"page": "apps"}).status_code == 401


# ── Forms of other sites ─────────────────────────────────────────────────────────────────────────

FOREIGN = [
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "cross-site"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_forms_of_other_sites_are_refused(
    daemon: TestedDaemon, admin: Viewer, headers: dict[str, str]
) -> None:
    csrf = admin.fields("/ui/audit")["csrf"]
    forms = {"/ui/login": {"token": daemon.token(ADMIN)}, "/ui/logout": {"csrf": csrf}}
    for path, form in forms.items():
        answer = admin.client.post(path, data=form, headers=headers)
        assert answer.status_code == 403, answer.text
        assert "set-cookie" not in answer.headers
        assert answer.headers["content-type"].startswith("text/html")
    assert admin.is_logged_in()


@pytest.mark.parametrize("csrf", ["", "wrong", None])
def test_forms_need_the_token_of_their_session(
    daemon: TestedDaemon, admin: Viewer, csrf: str | None
) -> None:
    fields = admin.fields("/ui/apps/demo/revoke")
    with viewer(daemon) as other:
        other.log_in(daemon.token(ADMIN))
        foreign = other.fields("/ui/audit")["csrf"]
    for wrong in ({"csrf": csrf} if csrf is not None else {}, {"csrf": foreign}):
        form = {name: value for name, value in fields.items() if name != "csrf"} | wrong
        for path in ("/ui/apps/demo/revoke", "/ui/logout", "/ui/audit/verify"):
            assert admin.post(path, form).status_code == 403
    assert admin.is_logged_in()
    with daemon.client("demo") as api:
        assert api.get("/v1/models").status_code == 200
