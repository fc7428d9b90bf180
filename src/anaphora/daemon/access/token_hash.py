"""Texts of tokens, their keyed hashes, and the key pairs derived from their ids."""

from __future__ import annotations

import hmac
import secrets

from blake3 import blake3

from anaphora.client.config.secrets import Secret

PREFIX = "ana_"
ADMIN_PREFIX = "ana_admin_"
NARROWED_PREFIX = PREFIX + "n_"
ID_PREFIX = "tok_"

_TOKEN_BYTES, _ID_BYTES = 32, 6
_CHECK_DIGITS = 16
#: The beginnings of keys that are no tokens of a daemon, and whose they are.
_KEYS = {
    "sk-ant-": "of Anthropic",
    "sk-or-": "of OpenRouter",
    "sk-proj-": "of OpenAI",
    "AIza": "of Google",
    "gsk_": "of Groq",
    "xai-": "of xAI",
    "ABSK": "of Amazon Bedrock",
    "sk-": "of a provider",
}


def refusal(text: str, *, admin: bool = False) -> str:
    """Why a token is refused, by its form alone: the same for tokens that were never made and for
    those that ended. `admin`: where administrators' tokens are accepted."""
    if not text:
        return "the request has no token"
    if text.startswith(ADMIN_PREFIX) and not admin:
        return "this is an administrator's token, and calls need the token of an app"
    if text.startswith(PREFIX):
        return "this token is wrong, expired or revoked"
    named = "anaphora apps add APP prints one, which begins with ana_"
    whose = next((whose for start, whose in _KEYS.items() if text.startswith(start)), "")
    if whose:
        return f"this is a key {whose}; send the app's token of this daemon instead: {named}"
    return f"this is no token of this daemon: {named}"


def new_secret(*, admin: bool = False) -> Secret:
    return Secret((ADMIN_PREFIX if admin else PREFIX) + secrets.token_urlsafe(_TOKEN_BYTES))


def new_id() -> str:
    return ID_PREFIX + secrets.token_hex(_ID_BYTES)


class TokenHash:
    """Keyed BLAKE3 of tokens."""

    def __init__(self, key: Secret) -> None:
        self._keyed = blake3(key=bytes.fromhex(key.reveal()))

    def new_narrowed(self) -> Secret:
        """A token that shows holders of the key that it was made with it."""
        text = NARROWED_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        return Secret(text + self._check(text))

    def is_narrowed(self, token: Secret) -> bool:
        """Whether a token was made by `new_narrowed`."""
        text = token.reveal()
        if not text.startswith(NARROWED_PREFIX) or not text.isascii():
            return False
        return hmac.compare_digest(self._check(text[:-_CHECK_DIGITS]), text[-_CHECK_DIGITS:])

    def _check(self, text: str) -> str:
        return self._keyed.copy().update(f"narrowed {text}".encode()).hexdigest()[:_CHECK_DIGITS]

    def __call__(self, token: Secret) -> bytes:
        return self._keyed.copy().update(token.reveal().encode(errors="replace")).digest()
