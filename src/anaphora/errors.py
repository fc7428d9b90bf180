"""Every error Anaphora raises, in one tree.

    AnaphoraError
    ├── InvalidRequest            the caller's input; names the field
    │   ├── InvalidTool           a tool's name, schema or signature
    │   └── InvalidJson           a value JSON cannot hold, with the path to it
    ├── InvalidCatalog            a row of the rules or models table
    ├── PrefixBroken              the prefix changed; raised before sending
    ├── InvalidConfig             a line of llm.yaml, or of another YAML file
    │   ├── MissingSecret         the key that llm.yaml names is missing
    │   └── StoreRefused          PostgreSQL refuses the password, or has another schema
    ├── Transport                 the connection failed before the response was complete
    ├── Throttled                 client-side limits: the call could not start in time
    ├── BudgetExceeded            a budget or `max_cost_usd`: the call was not sent
    ├── ColdCache                 `on_cold`: the cached beginning is gone; raised before sending
    ├── SummaryFailed             the answer is no summary; the conversation is unchanged
    ├── Unavailable               the circuit breaker of the provider is open
    ├── Timeout                   the caller's time limit, in milliseconds, was exceeded
    ├── Upstream                  the provider responded with an error (status, code, request id)
    │   ├── RateLimited           retry after the stated delay
    │   ├── Overloaded            a failure of the provider; retry with backoff
    │   ├── QuotaExhausted        spend cap or per-day quota; retrying does not help
    │   ├── Unauthenticated       the key is missing or wrong
    │   ├── Forbidden             the key may not do this
    │   ├── NotFound              no such model, file or stored response
    │   ├── TooLarge              the body exceeds the provider's limit
    │   ├── ContextOverflow       the prompt exceeds the model's window
    │   ├── ContentRefused        the provider declined the content
    │   ├── RequestRejected       any other 4xx, with the provider's parameter path
    │   └── Denied                the daemon refused the call before anything was sent
    │       ├── CapabilityDenied  the app has no such capability
    │       ├── NotificationDenied  a JSON-RPC notification of a method that calls a provider
    │       ├── NotGranted        a provider, model, tool or field that is not in the app's grant
    │       ├── GrantExceeded     a spend limit of the grant is used up; names it and its reset
    │       ├── ColdCallRefused   the cached beginning is gone; the same call again passes
    │       ├── SpendLimitReached  `anaphora watch --max-usd`: the program has spent its limit
    │       ├── GrantRateLimited  the grant's requests or tokens per minute are used up
    │       └── StoreUnavailable  the daemon cannot record the call, or is stopping
    ├── Parse                     a reply that does not have the expected format
    ├── NoFixture                 replay has nothing for (model, prompt hash)
    ├── FixtureIntegrityFailed    a recorded fixture does not match its index
    ├── SignatureMismatch         the signature of a fixture folder is missing or does not match
    │   └── MacMismatch           a row of an audit log has no MAC of the daemon's key
    ├── ChainBroken               an audit log was changed; names the first row that does not fit
    ├── AnchorMismatch            an audit log does not hold the row that its anchor names
    ├── OtherSchema               a file of another schema_version than this package reads
    ├── MissingExtra              an optional package is not installed; names the command
    └── Io                        a local file could not be read or written

Everything that a caller may branch on is an attribute, never only in the message.
Messages contain no keys, prompt text or reply text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from decimal import Decimal

__all__ = [
    "AnaphoraError", "AnchorMismatch", "BudgetExceeded", "CapabilityDenied", "ChainBroken",
    "ColdCache", "ColdCallRefused", "ContentRefused", "ContextOverflow", "Denied",
    "FixtureIntegrityFailed", "Forbidden", "GrantExceeded", "GrantRateLimited",
    "InvalidCatalog", "InvalidConfig", "InvalidJson", "InvalidRequest", "InvalidTool", "Io",
    "MacMismatch", "MissingExtra", "MissingSecret", "NoFixture", "NotFound", "NotGranted",
    "NotificationDenied", "OtherSchema", "Overloaded", "Parse", "PrefixBroken",
    "QuotaExhausted", "RateLimited", "RequestRejected", "SignatureMismatch",
    "SpendLimitReached", "StoreRefused", "StoreUnavailable", "SummaryFailed", "Throttled",
    "Timeout", "TooLarge", "Transport", "Unauthenticated", "Unavailable", "Upstream",
]  # fmt: skip

Phase: TypeAlias = Literal["connect", "send", "first_byte", "body", "idle"]
"""How far a request got: no connection, not sent, no response, a response that broke off or stopped
arriving."""


class AnaphoraError(Exception):
    """Base of all errors; `retryable`: sending again may help."""

    retryable: bool = False
    partial: Any = None
    """The part of the reply that was received: a `Reply`, or None."""
    attempts: tuple[Any, ...] = ()
    """Every attempt of the call, each an `Attempt`."""
    provider: str = ""
    """The provider that the last attempt went to; empty if nothing was sent."""


class InvalidRequest(AnaphoraError):
    """Invalid input. `path` is its place: `messages[3].parts[0].arguments`."""

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    def within(self, place: str) -> Self:
        """The same error with `place` before the path."""
        return type(self)(self.reason, path=f"{place}.{self.path}" if self.path else place)


class InvalidTool(InvalidRequest):
    """A tool that no provider accepts, or two tools with the same name."""


class InvalidJson(InvalidRequest):
    """A value that JSON cannot hold (NaN, infinity, a lone surrogate, a foreign type)."""


class InvalidCatalog(AnaphoraError):
    """A row of the catalog is malformed. Names the file and the row."""

    def __init__(self, message: str, *, file: str = "", row: str = "") -> None:
        where = ", ".join(part for part in (file, row) if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.file = file
        self.row = row


class PrefixBroken(AnaphoraError):
    """The prompt no longer begins with the previous one; names the byte and the block."""

    def __init__(self, message: str, *, offset: int, label: str, path: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.label = label
        self.path = path


class InvalidConfig(AnaphoraError):
    """A configuration that cannot be used. Names the file, the line and the field."""

    def __init__(self, message: str, *, file: str = "", line: int | None = None) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {message}" if where else message)
        self.file = file
        self.line = line


class MissingSecret(InvalidConfig):
    """The key named by the configuration is missing. Never shows its content."""


class StoreRefused(InvalidConfig):
    """PostgreSQL is reachable but cannot be used: a wrong password, version, setting or schema.
    Waiting does not help."""


class Transport(AnaphoraError):
    """The connection failed before the response was complete, in `phase`."""

    retryable = True

    def __init__(self, message: str, *, phase: Phase = "connect") -> None:
        super().__init__(message)
        self.phase = phase


class Throttled(AnaphoraError):
    """Client-side limits would delay the call by `wait` seconds, beyond its deadline."""

    def __init__(self, message: str, *, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


class BudgetExceeded(AnaphoraError):
    """The call was not sent: with it, a budget or `max_cost_usd` (here `limit`) could have been
    exceeded. In dollars: what is `spent` and `held` there, and `bound`, the call's maximum cost;
    None: it has none."""

    def __init__(
        self,
        message: str,
        *,
        limit: Decimal,
        spent: Decimal,
        held: Decimal,
        bound: Decimal | None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.spent = spent
        self.held = held
        self.bound = bound


class ColdCache(AnaphoraError):
    """The call was not sent: the cached beginning of its prompt is gone, and would be paid for
    again. `preview` has the cost, and `preview.cold` the reason."""

    def __init__(self, message: str, *, preview: Any) -> None:
        super().__init__(message)
        self.preview = preview


SummaryProblem: TypeAlias = Literal[
    "tool_call", "refusal", "truncated", "paused", "empty", "over_budget", "history_changed"
]
"""Why an answer does not replace the history; docs/summarize.md describes each."""


class SummaryFailed(AnaphoraError):
    """`summarize` was answered, and the answer cannot replace the history, which is unchanged.
    `response` has the answer and its bill, `partial` the reply."""

    def __init__(self, message: str, *, problem: SummaryProblem, response: Any) -> None:
        super().__init__(message)
        self.problem = problem
        self.response = response
        self.partial, self.attempts = response.reply, response.attempts


class Unavailable(AnaphoraError):
    """The provider failed too often; it is tried again in `wait` seconds."""

    def __init__(self, message: str, *, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


class Timeout(AnaphoraError):
    """The call did not finish within `timeout_ms`."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(f"timeout after {timeout_ms} ms")
        self.timeout_ms = timeout_ms


class Upstream(AnaphoraError):
    """The provider responded with an error; its structured fields are kept."""

    wire: str = ""
    """The provider's wire; empty if the error is not a provider's."""
    details: dict[str, Any] | None = None
    """Fields of its error object that callers of the same wire may see, unchanged."""
    own_host: str = ""
    """The provider's host, if it is one of the user's own."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after

    def restated(self, message: str) -> Self:
        """The same error with another message."""
        kind = type(self)
        other = kind.__new__(kind, message)
        vars(other).update(vars(self))
        if other.details is not None:
            other.details = {**other.details, "message": message}
        return other


class RateLimited(Upstream):
    """Too many requests or tokens; `retry_after` in seconds, if the provider stated it."""

    retryable = True


class Overloaded(Upstream):
    """A failure of the provider (5xx, 529)."""

    retryable = True


class QuotaExhausted(Upstream):
    """A spend cap or a per-day quota; retrying does not help."""


class Unauthenticated(Upstream):
    """The key is missing, wrong or revoked."""


class Forbidden(Upstream):
    """The key is valid but not allowed to do this."""


class NotFound(Upstream):
    """No such model, file, cache entry or stored response."""


class TooLarge(Upstream):
    """The request body exceeds the provider's limit."""


class ContextOverflow(Upstream):
    """The prompt exceeds the model's context window."""


class ContentRefused(Upstream):
    """The provider declined the content."""


class RequestRejected(Upstream):
    """The provider refused the request as invalid; `param` is its path of the field."""


class Denied(Upstream):
    """The daemon refused a call; nothing was sent and nothing is charged."""

    kind = "denied"
    """A constant of each class, for programs: `data.kind` in JSON-RPC."""
    default_status = 403

    def __init__(self, message: str, *, param: str | None = None, **fields: Any) -> None:
        super().__init__(message, status=self.default_status, param=param, code=self.kind, **fields)


class CapabilityDenied(Denied):
    """The app's grant does not hold the capability that a method needs."""

    kind = "capability_denied"

    def __init__(self, message: str, *, capability: str, app: str, method: str) -> None:
        super().__init__(message)
        self.capability = capability
        self.app = app
        self.method = method


class NotificationDenied(Denied):
    """A method that calls a provider was sent without an id: its answer would be lost."""

    kind = "notification"
    default_status = 400


class NotGranted(Denied):
    """The grant does not list something that the request uses; `param` is the request's field."""

    kind = "not_granted"


class GrantExceeded(Denied):
    """A spend limit does not allow this call. `limit` is its name in the grant, `resets_at` the
    time of its reset in seconds since 1970; None: it does not reset by itself."""

    kind = "grant_exceeded"
    default_status = 402

    def __init__(self, message: str, *, limit: str, resets_at: float | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.resets_at = resets_at


class ColdCallRefused(Denied):
    """The cached beginning of the prompt is gone, and would be paid for again. The same call passes
    if it is sent again. `cold` has the reason and the cost."""

    kind = "cold_cache"
    default_status = 402

    def __init__(self, message: str, *, cold: Any) -> None:
        super().__init__(message)
        self.cold = cold


class SpendLimitReached(Denied):
    """`anaphora watch --max-usd`: the program has spent its limit."""

    kind = "spend_limit"
    default_status = 402


class GrantRateLimited(Denied):
    """The grant's rate is used up for `retry_after` seconds."""

    kind = "grant_rate_limited"
    default_status = 429
    retryable = True

    def __init__(self, message: str, *, limit: str, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.limit = limit


class StoreUnavailable(Denied):
    """The daemon cannot write to its store, or is stopping: no call without a hold. `public` is the
    message for apps, if the error's own names the address of a database."""

    kind = "unavailable"
    default_status = 503
    retryable = True

    def __init__(self, message: str, *, public: str | None = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.public = message if public is None else public


class Parse(AnaphoraError):
    """A reply does not have the expected format. `path` is the place in the reply."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class NoFixture(AnaphoraError):
    """There is no replay fixture for this model and prompt. `reason` says how the nearest one
    differs, if that is known."""

    def __init__(self, *, model: str, prompt_hash: str, reason: str = "") -> None:
        message = f"no replay fixture for model={model} prompt_hash={prompt_hash}"
        super().__init__(f"{message}: {reason}" if reason else message)
        self.model = model
        self.prompt_hash = prompt_hash
        self.reason = reason


class FixtureIntegrityFailed(AnaphoraError):
    """A fixture folder does not match its index; nothing from it is served."""


class SignatureMismatch(AnaphoraError):
    """A fixture folder was not signed with the expected key, or was changed after that."""


class MacMismatch(SignatureMismatch):
    """A row of an audit log has no MAC of the daemon's key, or another one."""

    def __init__(self, message: str, *, row: int) -> None:
        super().__init__(message)
        self.row = row


class ChainBroken(AnaphoraError):
    """An audit log was changed. `row` is the first row that does not fit, `place` its file and
    line."""

    def __init__(self, reason: str, *, row: int, place: str = "") -> None:
        where = f" ({place})" if place else ""
        super().__init__(f"row {row:,}{where}: {reason}")
        self.reason = reason
        self.row = row
        self.place = place


class AnchorMismatch(AnaphoraError):
    """An audit log does not hold the row that its anchor names: it was cut off or rewritten."""

    def __init__(self, message: str, *, row: int) -> None:
        super().__init__(message)
        self.row = row


class OtherSchema(AnaphoraError):
    """A file or a store is of another version of this package, which this one does not read."""

    def __init__(self, place: str, *, version: int, known: int) -> None:
        if version > known:
            reason = (
                f"is newer than {known}, the newest that this version of anaphora reads; upgrade"
                " anaphora"
            )
        else:
            reason = (
                f"is older than {known}, which this version of anaphora reads: keep the folder,"
                " create a new home with `anaphora init`, and add the apps again"
            )
        super().__init__(f"{place}: schema_version {version} {reason}")
        self.version = version
        self.known = known


class MissingExtra(AnaphoraError):
    """A feature needs a package that comes with the extra `anaphora[extra]`."""

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message)
        self.extra = extra


class Io(AnaphoraError):
    """A local file could not be read or written."""
