"""Errors in the caller's wire, with the statuses and headers that SDKs act on.

SDKs do not retry a call that the grant refuses: it has `x-should-retry: false` and no
`retry-after`. A provider's errors keep status and type. Their body is never passed on but written
again, with the fields listed for the caller's wire (`wire.error_details`), and without keys and
account names.
"""

from __future__ import annotations

import math
import re
from typing import Any

from anaphora import errors, wire
from anaphora.daemon.faces import face_of
from anaphora.daemon.values import public_text
from anaphora.errors import AnaphoraError, Denied, Upstream
from anaphora.redaction import MASK, looks_like_key
from anaphora.serving.exchange import CompleteResponse

from .headers import own_headers

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


# ── Masked texts ─────────────────────────────────────────────────────────────────────────────────

#: Maximum number of characters shown of one text.
LONGEST = 2_000
_HIDDEN = "…"
#: Maximum length of an account name.
_LONGEST_NAME = 512
_BETWEEN_WORDS = frozenset(" \t\r\n'\"`,;()<>")
_WORDS = re.compile(r"[^\s'\"`,;:()<>\[\]{}=&?#|…]+")
#: Each replaces its first group if it has one, otherwise the whole match. They run in linear time,
#: since the texts are untrusted.
_PATTERNS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        # Organisations, projects, workspaces and users by their ids.
        r"\b(?:org|proj|wrkspc|acct)[-_/][\w-]{6,}",
        r"\buser[-_/](?=[\w-]{0,128}\d)[\w-]{6,}",
        r"\b(?:projects|organizations|workspaces|accounts|subscriptions|tenants)/([\w.:-]+)",
        # The same after their names: `user_id: u-1`, `project number 123456`, `account=…`.
        r"\b(?:user|account|customer|subscription|tenant|organization|org|project)[-_ ]?"
        r"(?:id|number|key)\b[\"']?\s*+(?:[:=#]\s*+)?[\"']?([\w.@-]{0,128}\d[\w.@-]*)",
        r"\b(?:project|account|organization|consumer)[\"']?(?:\s*+[:=#]\s*+|\s++)[\"']?"
        r"((?:project_number:)?\d{4,}[\w-]*)",
        r"\b(?:bearer|basic)\s++(?=[\w.~+/-]{0,64}\d)([\w.~+/-]{12,}=*)",
        # Users, roles and their sessions at AWS, and account numbers, alone or in an ARN.
        r"\barn:[\w-]{1,20}:(?:iam|sts):[\w-]{0,20}:[^:\s]{0,20}:[a-z-]{1,20}/([\w+=,.@:/-]+)",
        r"(?<![\w.])\d{12}(?![\w.])",
        r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b",
        # Addresses in private networks.
        r"(?<![\w.])(?:10|127)(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])",
        r"(?<![\w.])(?:192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?::\d+)?(?![\w.])",
        r"(?<![\w:])\[?(?:::1|f[cd][0-9a-f]{2}:[0-9a-f:]+|fe80:[0-9a-f:]+)\]?(?::\d+)?(?![\w:])",
        r"\blocalhost(?::\d+)?\b",
        r"(?<![\w.-])[.-]*+(?:[\w-]+\.+)+(?:internal|local|lan|corp|intranet|localdomain|svc)"
        r"(?::\d+)?\b",
    )
)


def without_accounts(text: str, own_host: str = "") -> str:
    """A provider's text without keys, account names and the operator's own addresses. `own_host` is
    the provider's host if it is one of those."""
    if own_host:
        text = re.sub(rf"(?<![\w.-]){re.escape(own_host)}(?::\d+)?", _HIDDEN, text, flags=re.I)
    for pattern in _PATTERNS:
        text = pattern.sub(_replacement, text)
    return _WORDS.sub(lambda word: MASK if looks_like_key(word[0]) else word[0], text)


def _replacement(match: re.Match[str]) -> str:
    if not match.re.groups:
        return _HIDDEN
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return match[0][:start] + _HIDDEN + match[0][end:]


def shown_text(text: str, own_host: str = "") -> str:
    """The same for a text of any length, which is cut if it is long."""
    if len(text) <= LONGEST:
        return without_accounts(text, own_host)
    # Cut between words first: a cut name would not be recognized.
    head = text[: 2 * LONGEST]
    if len(head) < len(text):
        whole = len(head) - _LONGEST_NAME
        ends = (at for at in range(len(head), whole, -1) if head[at - 1] in _BETWEEN_WORDS)
        head = head[: next(ends, whole)]
    head = without_accounts(head, own_host)
    return head if len(head) <= LONGEST and len(text) <= 2 * LONGEST else f"{head[:LONGEST]}…"


def masked(value: Any, own_host: str = "") -> Any:
    """A JSON value with masked texts."""
    if isinstance(value, str):
        return shown_text(value, own_host)
    if isinstance(value, list):
        return [masked(each, own_host) for each in value]
    if isinstance(value, dict):
        return {shown_text(name): masked(each, own_host) for name, each in value.items()}
    return value
