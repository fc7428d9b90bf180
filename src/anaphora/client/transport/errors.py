"""Addresses, and network failures as `errors.Transport`.

The `phase` of an error is how far the request got:

    connect     no connection: DNS, port, certificate, proxy, or none free in time
    send        the connection was lost while the request was written, or a kept-alive connection
                had been closed by the server, most likely before it read the request. GET and
                DELETE are sent again here, POST by the retry policy: at least once, since no
                response tells whether the server had begun
    first_byte  the request was sent, and no valid response head arrived
    body        the response broke off, cannot be decoded, or exceeds `max_response_bytes`
    idle        the response stopped arriving

Messages contain nothing that was sent or received. aiohttp's exceptions and the local variables of
its frames do, so they are neither the cause nor the context of ours.
"""

from __future__ import annotations

import base64
import os
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from yarl import URL

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.errors import InvalidConfig, InvalidRequest, Phase, Transport

from .decoding import InvalidCompression


def read_url(text: str) -> URL:
    """The URL with its quoting unchanged."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequest("not a URL: percent-encode non-ASCII characters", path="url")
    try:
        url = URL(text, encoded=True)
    except ValueError:
        raise InvalidRequest("not a URL", path="url") from None
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise InvalidRequest("not a URL like https://api.example/v1", path="url")
    return url


def read_proxy(address: Secret) -> tuple[URL, SecretHeaders]:
    """The proxy's URL without credentials, and the headers that it gets."""
    proxy, headers = _split_proxy(address)
    if proxy.scheme not in ("http", "https") or not proxy.host:
        # Not quoted: it may contain a password.
        raise InvalidConfig("proxy: not a URL like http://proxy.example:3128")
    return proxy, headers


def _split_proxy(address: Secret) -> tuple[URL, SecretHeaders]:
    try:
        url = URL(address.reveal())
        if url.user is None and url.password is None:
            return url, SecretHeaders()
        token = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode("latin1"))
        headers = {"Proxy-Authorization": f"Basic {token.decode()}"}
        return url.with_user(None), SecretHeaders(headers)
    except ValueError:
        return URL(), SecretHeaders()


def tls_context(ca: str) -> ssl.SSLContext:
    """TLS that trusts the certificates of a file and no others."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InvalidConfig(f"ca: cannot read certificates from {ca}") from error


def host_of(url: URL) -> str:
    """Host and port only: a path may be private, a query may contain a key."""
    return f"{url.raw_host}:{url.port}"


def address_of(error: Exception, url: URL, proxy: URL | None) -> str:
    """The host that an error message names, with the proxy on the way to it."""
    if proxy is None:
        return host_of(url)
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
        return f"proxy {host_of(proxy)} to {host_of(url)}"
    return f"{host_of(url)} through proxy {host_of(proxy)}"


def connect_error(error: Exception, timeouts: Timeouts, url: URL, proxy: URL | None) -> Transport:
    message = f"{address_of(error, url, proxy)}: {_connect_failure(error, timeouts)}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return permanent(message, "connect")
    return Transport(message, phase="connect")


def _connect_failure(error: Exception, timeouts: Timeouts) -> str:
    match error:
        case TimeoutError():
            return f"no connection within {timeouts.connect:g} s"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused with status {error.status}"
        case aiohttp.ClientResponseError():
            return "the proxy does not speak HTTP"
        case aiohttp.ClientConnectorDNSError():
            return "the name does not resolve"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate is not trusted ({reason(error)})"
        case aiohttp.ClientConnectorSSLError():
            return f"TLS failed ({reason(error)})"
        case _:
            return f"cannot connect ({reason(error)})"


def no_response(
    error: Exception,
    timeouts: Timeouts,
    url: URL,
    proxy: URL | None,
    *,
    written: bool,
    reused: bool,
) -> Transport:
    """The error of a request without a response; `reused`: on a kept-alive connection."""
    phase, reason = _phase_reached(error, timeouts, written, reused)
    return Transport(f"{address_of(error, url, proxy)}: {reason}", phase=phase)


def _phase_reached(
    error: Exception, timeouts: Timeouts, written: bool, reused: bool
) -> tuple[Phase, str]:
    match error:
        case aiohttp.SocketTimeoutError():
            return "first_byte", f"no response within {timeouts.first_byte:g} s"
        case TimeoutError() if not written and error.errno is None:
            return "send", f"the server read nothing more of the request for {timeouts.idle:g} s"
        case HttpProcessingError():
            if _is_caused_by(error, LineTooLong):
                return "first_byte", "the response headers are too large"
            return "first_byte", "the response is not HTTP"
        case _ if not written:
            return "send", f"connection lost while sending ({reason(error)})"
        case _ if reused:
            return "send", f"the kept-alive connection was closed ({reason(error)})"
        case _:
            return "first_byte", f"no response ({reason(error)})"


def body_error(error: Exception, timeouts: Timeouts, url: URL) -> Transport:
    if isinstance(error, TimeoutError):
        message = f"{host_of(url)}: no data of the response for {timeouts.idle:g} s"
        return Transport(message, phase="idle")
    message = f"{host_of(url)}: the response broke off ({reason(error)})"
    return Transport(message, phase="body")


def too_long(most: int, url: URL) -> Transport:
    return permanent(f"{host_of(url)}: the response is longer than {most:,} bytes", "body")


def reason(error: BaseException) -> str:
    """The root cause, in words that quote nothing sent or received."""
    if isinstance(error, InvalidCompression):
        return str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, aiohttp.ClientConnectorCertificateError):
            cause = cause.certificate_error
        elif isinstance(cause, aiohttp.ClientConnectorError):
            cause = cause.os_error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if isinstance(cause, ssl.SSLError) and getattr(cause, "reason", None):
            return cause.reason.lower().replace("_", " ")
        if isinstance(cause, OSError) and cause.errno:
            # The system's text; libraries replace it with one that names paths.
            return os.strerror(cause.errno).lower()
        if isinstance(cause, aiohttp.ServerDisconnectedError):
            return "the server disconnected"
        error, cause = cause, cause.__cause__
    return type(error).__name__


def permanent(message: str, phase: Phase) -> Transport:
    error = Transport(message, phase=phase)
    error.retryable = False
    return error


def _is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error is not None
