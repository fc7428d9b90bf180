"""Addresses, and whom to trust there."""

from __future__ import annotations

import ssl

from yarl import URL

from anaphora.errors import InvalidConfig, InvalidRequest


def read_url(text: str) -> URL:
    """The address as it was given: what is quoted stays quoted as it is."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequest("not an address: quote what is not plain ASCII", path="url")
    try:
        url = URL(text, encoded=True)
    except ValueError:
        raise InvalidRequest("not an address", path="url") from None
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise InvalidRequest("not an address like https://api.example/v1", path="url")
    return url


def read_proxy(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        # Not quoted: it may carry a password.
        raise InvalidConfig("proxy: not an address like http://proxy.example:3128")
    return url


def trusting(ca: str) -> ssl.SSLContext:
    """TLS that trusts the certificates of a file, and no others."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as problem:
        raise InvalidConfig(f"ca: no certificates can be read from {ca}") from problem


def place(url: URL) -> str:
    """Host and port: a path may name what is private, a query may hold a key."""
    return f"{url.raw_host}:{url.port}"
