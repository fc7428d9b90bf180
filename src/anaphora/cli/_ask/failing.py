"""What went wrong with a call, in one line that says what to do."""

from __future__ import annotations

from anaphora.errors import (
    AnaphoraError,
    ContentRefused,
    ContextOverflow,
    Forbidden,
    InvalidConfig,
    InvalidRequest,
    MissingSecret,
    NotFound,
    Overloaded,
    Parse,
    QuotaExhausted,
    RateLimited,
    Timeout,
    TooLarge,
    Transport,
    Unauthenticated,
    Upstream,
)

from .choosing import Chosen
from .voice import one_line

#: A provider may say a lot; what to do comes behind it.
_LONGEST = 500

FOUND, USAGE, MISMATCH, UNMET = 1, 2, 4, 7

_ADVICE: tuple[tuple[type[AnaphoraError], str], ...] = (
    (Unauthenticated, "check the key ({keys})"),
    (Forbidden, "the key ({keys}) may not do this"),
    (QuotaExhausted, "look at the account's limits, or ask another with -p"),
    (RateLimited, "wait a moment, or ask another with -p"),
    (Overloaded, "try again in a moment, or ask another with -p"),
    (NotFound, "name another model with -m; `anaphora models` lists those that are known"),
    (ContextOverflow, "say less: fewer files, or a new conversation"),
    (TooLarge, "say less: fewer or smaller files, or a new conversation"),
    (ContentRefused, "say it in other words, or ask another with -p"),
    (Transport, "is {hosts} the right address, and can it be reached?"),
    (Timeout, "allow more with `timeouts` in llm.yaml, or ask for a shorter answer"),
)  # fmt: skip


def told(problem: AnaphoraError, chosen: Chosen) -> str:
    """One line: who, what, how often, and what to do. No key is in it, whoever repeated one."""
    said = one_line(str(problem), _LONGEST)
    if isinstance(problem, Upstream | Transport | Timeout):
        asked = problem.attempts[-1].provider if problem.attempts else chosen.name
        status = getattr(problem, "status", None)
        said = f"{asked}: {said}" + (f" ({status})" if status else "")
        if len(problem.attempts) > 1:
            said += f", after {len(problem.attempts)} attempts"
    advice = next((text for kind, text in _ADVICE if isinstance(problem, kind)), "")
    if advice:
        keys = ", ".join(str(one.provider.key or "none") for one in chosen.providers.values())
        hosts = ", ".join(one.base_url for one in chosen.providers.values())
        said = f"{said.rstrip('.')}; {advice.format(keys=keys, hosts=hosts)}"
    return hidden(said, chosen)


def hidden(text: str, chosen: Chosen) -> str:
    for secret in chosen.secrets:
        text = text.replace(secret, "<secret>")
    return text


def code(problem: AnaphoraError, *, schema: bool) -> int:
    if isinstance(problem, MissingSecret | Unauthenticated):
        return UNMET
    if isinstance(problem, InvalidRequest | InvalidConfig):
        return USAGE
    return MISMATCH if schema and isinstance(problem, Parse) else FOUND
