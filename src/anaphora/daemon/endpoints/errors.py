"""Errors in the caller's wire, with the statuses and headers that SDKs act on.

SDKs do not retry a call that the grant refuses: it has `x-should-retry: false` and no
`retry-after`. A provider's errors keep status and type. Their body is never passed on but written
again, with the fields listed for the caller's wire (`wire.error_details`), and without keys and
account names.
"""

from __future__ import annotations

import math
from typing import Any

from anaphora import errors, wire
from anaphora.daemon.faces import face_of
from anaphora.daemon.values import public_text
from anaphora.errors import AnaphoraError, Denied, Upstream
from anaphora.serving.exchange import CompleteResponse

from .headers import own_headers
from .masking import masked, shown_text

#: The error class in which a wire writes a denial.
_WRITTEN_AS: dict[int, type[Upstream]] = {
    402: errors.QuotaExhausted,
    403: errors.Forbidden,
    404: errors.NotFound,
    429: errors.RateLimited,
    503: errors.Overloaded,
}
#: Statuses of an overloaded provider; others from 500 are failures.
_OVERLOADED = (None, 503, 529)
_UNREACHED = "the provider could not be reached"
_BROKEN = {
    "body": "the provider's response broke off",
    "idle": "the provider stopped sending its response",
}
_OPERATORS: dict[type[AnaphoraError], str] = {
    errors.Unauthenticated: "the provider does not accept the operator's key",
    errors.QuotaExhausted: "the operator's quota at the provider is used up",
    errors.Forbidden: "the operator's key may not do this at the provider",
}
#: The code for a model that is unknown or not granted.
_NO_MODEL = "model_not_found"
#: A provider may report a failure in a response with status 200.
_FIRST_ERROR = 400


def error_response(wire_name: str, problem: AnaphoraError, request_id: str) -> CompleteResponse:
    """A problem in the format of a wire."""
    error, face = wire_error(problem, wire_name), face_of(wire_name)
    own = not isinstance(problem, Upstream) or isinstance(problem, Denied)
    if own and error.code == _NO_MODEL:
        error.status = face.unknown_model_status
    error.details = _shown_details(problem, wire_name)
    error = face.own_error(error)
    error.request_id = request_id
    status, headers, body = wire.get(wire_name).write_error(error)
    theirs = None if own else getattr(problem, "request_id", None)
    headers |= own_headers(wire_name, request_id, provider_request_id=theirs)
    if isinstance(problem, Denied) and not problem.retryable:
        headers["x-should-retry"] = "false"
        headers.pop("retry-after", None)
    elif error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))  # SDKs read whole seconds
    if error.status is not None:
        status = error.status
    return CompleteResponse(status, headers, body)


def wire_error(problem: AnaphoraError, wire_name: str) -> Upstream:
    """The problem as an error that wires can write. `wire_name` is the caller's wire, whose field
    names are used."""
    if isinstance(problem, Denied):
        status = problem.status or problem.default_status
        written = _WRITTEN_AS.get(status, errors.Forbidden)
        return written(
            shown_message(problem),
            status=status,
            code=_masked(problem.code),
            param=_masked(problem.param),
            retry_after=problem.retry_after,
        )
    if isinstance(problem, Upstream):
        kind = type(problem)
        shown = None if (problem.status or 0) < _FIRST_ERROR else problem.status
        if kind is errors.Overloaded and shown not in _OVERLOADED:
            kind = Upstream
        return kind(
            shown_message(problem),
            status=shown,
            # Clients look for their wire's own code.
            code=None if kind is errors.ContextOverflow else _masked(problem.code),
            param=_masked(problem.param),
            retry_after=problem.retry_after,
        )
    text = shown_message(problem)
    match problem:
        case errors.InvalidRequest(path="provider" | "model"):
            return errors.NotFound(text, status=404, code=_NO_MODEL, param=problem.path)
        case errors.InvalidRequest():
            field = _field(problem.path, wire_name)
            if field:
                text = shown_message(errors.InvalidRequest(problem.reason, path=field))
            return errors.RequestRejected(text, status=400, param=field or None)
        case errors.Throttled():
            return errors.RateLimited(text, status=429, retry_after=problem.wait)
        case errors.Unavailable():
            return errors.Overloaded(text, status=503, retry_after=problem.wait)
        case errors.Timeout():
            return Upstream(text, status=504)
        case errors.Transport():
            # Its message contains the provider's address.
            return Upstream(_BROKEN.get(problem.phase, _UNREACHED), status=502)
        case errors.Parse():
            return Upstream("the provider's response cannot be read", status=502)
        case errors.InvalidConfig():
            # Its message names files of the home.
            return errors.Overloaded("the provider is not configured correctly", status=503)
    return Upstream(f"internal error: {type(problem).__name__}", status=500)


def provider_error(problem: AnaphoraError) -> AnaphoraError:
    """A provider's error. One about the operator's account says so: its status alone would point to
    the app's token or grant."""
    why = None if isinstance(problem, Denied) else _OPERATORS.get(type(problem))
    if why is None or not isinstance(problem, Upstream):
        return problem
    return problem.restated(f"{why}: {problem}")


def kept_message(problem: AnaphoraError, with_text: bool) -> str:
    """The message of an app's error, for the dashboard. Without `with_text`, it leaves out what a
    provider wrote, which may quote the prompt."""
    shown = provider_error(problem)
    text = shown_message(shown)
    if with_text or not isinstance(problem, Upstream) or isinstance(problem, Denied):
        return text
    return "" if shown is problem else text.partition(": ")[0]


def _field(path: str, wire_name: str) -> str:
    """A path in a request or a `Call`, in the terms of the caller's wire."""
    field = path.removeprefix("$").removeprefix(".").removeprefix("params.")
    return face_of(wire_name).prompt_field if field == "ir" else field


def _shown_details(problem: AnaphoraError, wire_name: str) -> dict[str, Any] | None:
    """The fields of a provider's error that callers of its wire may see."""
    if not isinstance(problem, Upstream) or problem.details is None or problem.wire != wire_name:
        return None
    fields: dict[str, Any] = masked(problem.details, problem.own_host)
    return fields


def shown_message(problem: AnaphoraError) -> str:
    """The message without keys, account names and the store's address."""
    return shown_text(public_text(problem), getattr(problem, "own_host", ""))


def _masked(text: str | None) -> str | None:
    return None if text is None else shown_text(text)
