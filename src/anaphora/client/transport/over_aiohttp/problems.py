"""What aiohttp raises, in our words: how far the request came, and why no further."""

from __future__ import annotations

import os
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from anaphora.client.config.values import Timeouts
from anaphora.errors import Phase, Transport


def unconnected(problem: Exception, timeouts: Timeouts) -> str:
    """Why there is no connection."""
    match problem:
        case TimeoutError():
            return f"no connection within {timeouts.connect:g} s"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused with status {problem.status}"
        case aiohttp.ClientResponseError():
            return "the proxy does not speak HTTP"
        case aiohttp.ClientConnectorDNSError():
            return "the name does not resolve"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate is not trusted ({reason(problem)})"
        case aiohttp.ClientConnectorSSLError():
            return f"TLS failed ({reason(problem)})"
        case _:
            return f"cannot connect ({reason(problem)})"


def unanswered(
    problem: Exception, timeouts: Timeouts, *, written: bool, kept: bool
) -> tuple[Phase, str]:
    """How far a request came that got no answer on its connection, and why."""
    match problem:
        case aiohttp.SocketTimeoutError():
            return "first_byte", f"no answer came for {timeouts.first_byte:g} s"
        case TimeoutError() if not written and problem.errno is None:
            return "send", f"nothing more of the request was taken for {timeouts.idle:g} s"
        case HttpProcessingError():
            too_large = _is_caused_by(problem, LineTooLong)
            what = "the answer's headers are too large" if too_large else "the answer is not HTTP"
            return "first_byte", what
        case _ if not written:
            return "send", f"lost while sending ({reason(problem)})"
        case _ if kept:
            return "send", f"the kept connection had gone ({reason(problem)})"
        case _:
            return "first_byte", f"no answer came ({reason(problem)})"


def reason(problem: BaseException) -> str:
    """A cause in words that carry nothing of what was sent or received.

    What aiohttp raised does: it is never made the cause of an error of ours, where a log would show
    it.
    """
    cause: BaseException | None = problem
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
            # The system's own words; what libraries put in their place names paths.
            return os.strerror(cause.errno).lower()
        if isinstance(cause, aiohttp.ServerDisconnectedError):
            return "the server hung up"
        problem, cause = cause, cause.__cause__
    return type(problem).__name__


def final(message: str, phase: Phase) -> Transport:
    """An error after which sending again does not help."""
    error = Transport(message, phase=phase)
    error.retryable = False
    return error


def _is_caused_by(problem: BaseException | None, kind: type[BaseException]) -> bool:
    while problem is not None and not isinstance(problem, kind):
        problem = problem.__cause__
    return problem is not None
