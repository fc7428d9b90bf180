"""Texts without secrets, for messages, reprs and logs.

    quoted("claude-sonnet-4-5")                        'claude-sonnet-4-5'
    quoted("sk-ant-api03-9aF3xLq…")                    '…'
    shown_value("sk-ant-api03-9aF3xLq…")               '…', and any other value as it is
    shown_url("https://gateway.example/9aF3xLq8/v1")   https://gateway.example/…/v1

For values of apps, in which a key may be in the wrong place: a text that could be a key is not
shown; an argument is hidden if it begins like a key. In texts of providers, known secrets are
replaced:

    Redactor(["sk-ant-api03-9aF3xLq…"])(text)
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from .errors import AnaphoraError

P = ParamSpec("P")
T = TypeVar("T")

#: In the flags of a coroutine function's code.
_COROUTINE = 0x80

#: Replaces a text that may be a secret.
ELLIPSIS = "…"

#: How the keys of providers and tokens of services begin.
_KEY_START = re.compile(
    r"(?:sk|pk|rk)[-_]|(?:ana|gsk|ghp|gho|ghs|github_pat|hf|r8|tgp)_|(?:csk|nvapi|pplx|glpat)-"
    r"|xai-(?=\w{16})|xox[abp]-|AIza|AKIA|ASIA|eyJ|ya29\.|(?i:bearer|basic) "
)
_SHORTEST_KEY = 12

#: Between the words of a name: `openai/gpt-5.2`, `AZURE_EU-2`.
_BETWEEN_WORDS = re.compile(r"[\s._\-/:@+,;'\"`()\[\]{}<>=?!$…]+")
#: Words that occur in names: of up to four characters, CamelCase, llama3, v1beta1, 20250929,
#: 8x22B.
_WORD = re.compile(
    r"\w{0,4}|(?=\w{1,24}\Z)(?:[a-z]+|[A-Z]+|[a-z]*(?:[A-Z]{1,5}[a-z]*){1,3})"
    r"|[A-Za-z]{1,16}\d{1,4}[A-Za-z]{0,5}\d{0,2}|\d{5}|20\d{6}|\dx\d{2,3}[Bb]"
)

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)?([^/?#]*@)?([^/?#]*)([^?#]*)(.*)", re.DOTALL)

#: Placeholders for a key if none is needed: `none`, `ollama`, `EMPTY`.
_PLACEHOLDER = re.compile(r"[A-Za-z]{0,11}|.{0,3}")


def looks_like_key(text: str) -> bool:
    """Whether a text begins like a key."""
    return len(text) >= _SHORTEST_KEY and _KEY_START.match(text) is not None


def could_be_secret(text: str) -> bool:
    """False for names made of words and small numbers; true for any other text."""
    if _KEY_START.match(text):
        return True
    return not all(map(_WORD.fullmatch, _BETWEEN_WORDS.split(text)))


def is_placeholder(secret: str) -> bool:
    """Whether the text is a placeholder for a key, which may also occur in other texts."""
    return _PLACEHOLDER.fullmatch(secret) is not None


def shown_name(text: str) -> str:
    return ELLIPSIS if could_be_secret(text) else text


def quoted(text: str) -> str:
    """The repr of a text."""
    return repr(shown_name(text))


def shown_value(value: object) -> str:
    """The repr of an invalid argument; hidden if it looks like a key."""
    return repr(ELLIPSIS if isinstance(value, str) and looks_like_key(value) else value)


def shown_text(text: str) -> str:
    """A sentence with names in it."""
    return re.sub(r"[^\s'\"`]+", lambda word: shown_name(word[0]), text)


def shown_url(url: str) -> str:
    """The URL without user, password and query, and without path segments that could be a
    secret."""
    found = _URL.match(url)
    assert found is not None
    scheme, user, host, path, rest = found.groups("")
    steps = "/".join(map(shown_name, path.split("/")))
    return f"{scheme}{user and '…@'}{host}{steps}{'?…' if rest.startswith('?') else ''}"


def without_frames(error: AnaphoraError) -> None:
    """Remove the traceback of an error, and the errors that it replaced: their frames may hold
    secrets, or texts of a provider."""
    error.__traceback__ = None
    if error.__suppress_context__:
        error.__context__ = None


def _hides_arguments_of_coroutine(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except AnaphoraError as error:
            problem = error
        del args, kwargs
        without_frames(problem)
        try:
            raise problem
        finally:
            del problem

    return call


def hides_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function or coroutine function: tracebacks of its errors hold none of its
    arguments and local variables, which error collectors would save."""
    if function.__code__.co_flags & _COROUTINE:  # without the import of inspect
        coroutine = cast(Callable[P, Coroutine[Any, Any, Any]], function)
        return cast(Callable[P, T], _hides_arguments_of_coroutine(coroutine))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except AnaphoraError as error:
            problem = error
        del args, kwargs
        without_frames(problem)
        try:
            raise problem
        finally:
            del problem  # avoids a cycle: the error's traceback refers to this frame

    return call


#: Replaces a secret.
MASK = "<secret>"
#: Shorter secrets are replaced as whole words only.
_SHORT = 8
#: Characters that a provider writes instead of the middle or the end of a key.
_MASKED = re.compile(r"[*•#…█]+|\.{2,}|[xX]{4,}")
#: Shorter tokens show too little of a secret: three characters and the mask.
_TOKEN = re.compile(r"[^\s\"'`<>(){}\[\],;:=]{4,}")


class Redactor:
    """Replaces given secrets in texts, including secrets that a provider masked or cut off in part.
    Takes time in proportion to the text."""

    __slots__ = ("_current", "_fixed", "_pattern", "_secrets")

    def __init__(
        self, secrets: Iterable[str], current: Callable[[], Iterable[str]] | None = None
    ) -> None:
        """`current` returns further secrets, which change from time to time."""
        self._fixed = tuple(secrets)
        self._current = current
        self._secrets = _unique(self._fixed)
        self._pattern: re.Pattern[str] | None = None

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets>"

    def __call__(self, text: str) -> str:
        if self._current is not None:
            secrets = _unique((*self._fixed, *self._current()))
            if secrets != self._secrets:
                self._secrets, self._pattern = secrets, None
        if not self._secrets or not text:
            return text
        if self._pattern is None:
            self._pattern = _pattern(self._secrets)
        return _TOKEN.sub(self._without_part, self._pattern.sub(MASK, text))

    def clean(self, error: AnaphoraError) -> None:
        """Replace the secrets in all texts of an error. The partial reply is not changed."""
        error.args = tuple(self(each) if isinstance(each, str) else each for each in error.args)
        for name, value in vars(error).items():
            if isinstance(value, str):
                setattr(error, name, self(value))
            elif name in ("__notes__", "details"):
                setattr(error, name, self.inside(value))

    def inside(self, value: Any) -> Any:
        """A JSON value with the secrets replaced in its texts."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self.inside(each) for each in value]
        if isinstance(value, dict):
            return {self(name): self.inside(each) for name, each in value.items()}
        return value

    def _without_part(self, token: re.Match[str]) -> str:
        """Replaces a token that is a part of a secret: sk-ant-***9aF, sk-ant-api03-…"""
        text = token[0]
        whole = text.rstrip(".!?")
        if len(whole) >= _SHORT:
            for each in self._secrets:
                if whole in each:
                    return MASK
        runs = list(_MASKED.finditer(text))
        if not runs:
            return text
        begin, end = text[: runs[0].start()], text[runs[-1].end() :].rstrip(".!?")
        for each in self._secrets:
            if (len(begin) > 2 and each.startswith(begin)) or (len(end) > 2 and each.endswith(end)):
                return MASK
        return text


def _unique(secrets: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in secrets if not is_placeholder(each)))


def _pattern(secrets: Iterable[str]) -> re.Pattern[str]:
    """Finds the secrets; the longest first, since one may contain another."""
    forms = dict.fromkeys(form for secret in secrets for form in _forms(secret))
    ordered = sorted(forms, key=len, reverse=True)
    return re.compile(
        "|".join(
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in ordered
        ),
        re.IGNORECASE,
    )


def _forms(secret: str) -> Iterator[str]:
    """The secret unchanged, in JSON, in a URL, and in base64."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret)[1:-1].replace("/", "\\/")
    yield "".join(
        each if each.isalnum() or each in "-._~" else f"%{ord(each):02X}" for each in secret
    )
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
