"""A viewer of the daemon's dashboard, who sends what a browser sends.

with viewer(daemon) as ui:
    ui.log_in(daemon.token(ADMIN))
    page = ui.get("/ui/apps")
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import httpx

from .daemon import NO_TLS, TestedDaemon
from .waiting import PATIENCE, wait_until

_FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
COOKIE = "anaphora_ui"


class Markup(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def active(self) -> list[tuple[str, dict[str, str | None]]]:
        """Elements that run something or look different by themselves: the policy of pages allows
        none of them."""
        return [
            (tag, attributes)
            for tag, attributes in self.elements
            if tag in ("img", "iframe", "object", "embed", "style", "base")
            or (tag == "script" and not (attributes.get("src") or "").startswith("/ui/static/"))
            or any(name.startswith("on") or name == "style" for name in attributes)
            or any((value or "").strip().startswith("javascript:") for value in attributes.values())
        ]


class Viewer:
    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def post(self, path: str, fields: dict[str, str], **options: Any) -> httpx.Response:
        """Sends a form from a page of the same server."""
        url = self.client.base_url
        origin = f"{url.scheme}://{url.netloc.decode()}"
        headers = {"origin": origin, "sec-fetch-site": "same-origin"}
        headers |= options.pop("headers", {})
        return self.client.post(path, data=fields, headers=headers, **options)

    def log_in(self, token: str, **fields: str) -> httpx.Response:
        return self.post("/ui/login", {"token": token, **fields})

    def is_logged_in(self) -> bool:
        return self.get("/ui").status_code == 200

    def fields(self, path: str) -> dict[str, str]:
        """The hidden fields of the forms of a page: of a write, the last ones."""
        page = self.get(path)
        assert page.status_code == 200, page.text
        return {name: html.unescape(value) for name, value in _FIELD.findall(page.text)}

    def submit(self, path: str, **fields: str) -> httpx.Response:
        """Opens a form and sends it with its hidden fields."""
        return self.post(path.partition("?")[0], {**self.fields(path), **fields})

    def until(self, path: str, text: str) -> str:
        """The page when it shows a text: calls are summed in the background."""
        page = ""

        def shown() -> bool:
            nonlocal page
            page = self.get(path).text
            return text in page

        try:
            wait_until(shown, f"{path} shows {text!r}")
        except TimeoutError as error:
            raise AssertionError(f"{error}: {page}") from None
        return page

    @property
    def cookie(self) -> str:
        return self.client.cookies[COOKIE]


@contextmanager
def viewer(daemon: TestedDaemon, **options: Any) -> Iterator[Viewer]:
    """Without a token, until `log_in`."""
    settings = {"base_url": daemon.url, "timeout": PATIENCE, "verify": NO_TLS}
    with httpx.Client(**{**settings, **options}) as client:
        yield Viewer(client)
