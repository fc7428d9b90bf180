"""Whose cache it is, under which parameters: what makes two equal prefixes different entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping

from blake3 import blake3

from anaphora.catalog import CacheRules
from anaphora.values import Section

from .prompt import Prompt

_SECTIONS: tuple[Section, ...] = ("tools", "system", "messages")
_REMEMBERED = 10_000

Salted = Callable[[int], Hashable]

_SALT = 16


def salt_of(key: Hashable) -> Hashable:
    """What is common to all blocks of one account, under the same parameters."""
    if isinstance(key, bytes):
        return key[:_SALT]
    return key[0] if isinstance(key, tuple) else None


class Account:
    """The scope of keys. A parameter that voids a section makes other keys of that section's."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._cache_params: OrderedDict[Hashable, Mapping[str, bytes]] = OrderedDict()
        self._last: tuple[Mapping[str, bytes], Hashable, dict[Section, bytes]] | None = None
        """Parameters, scope, and the salts they make: mostly the same from call to call."""
        self._usual: Mapping[str, bytes] = {}
        """One object for all conversations with the same parameters."""

    def __len__(self) -> int:
        return len(self._cache_params)

    def salted(self, prompt: Prompt, scope: Hashable) -> Salted:
        """The key of a block, by its position."""
        last, cache_params = self._last, prompt.cache_params
        # 1 and True are equal, and not the same.
        same = last is not None and scope == last[1] and type(scope) is type(last[1])
        if last is not None and same and (cache_params is last[0] or cache_params == last[0]):
            salts = last[2]
        else:
            salts = {section: self._salt(prompt, section, scope) for section in _SECTIONS}
            self._last = prompt.cache_params, scope, salts
        key_of, leading, usual = prompt.key, prompt.leading, salts["messages"]

        def salted(position: int) -> Hashable:
            salt = usual if position > leading else salts[prompt.section(position)]
            key = key_of(position)
            # Small, and hashed faster than a tuple.
            return salt + key if type(key) is bytes else (salt, key)

        return salted

    def remember(self, prompt: Prompt, scope: Hashable) -> None:
        if len(prompt):
            key = scope, prompt.key(0)
            known = self._cache_params.get(key)
            if known is not prompt.cache_params and known != prompt.cache_params:
                if self._usual != prompt.cache_params:
                    self._usual = prompt.cache_params
                self._cache_params[key] = self._usual
            self._cache_params.move_to_end(key)
            if len(self._cache_params) > _REMEMBERED:
                self._cache_params.popitem(last=False)

    def changed(self, prompt: Prompt, scope: Hashable) -> str:
        """The parameters that differ from the last call that began like this one, and void it."""
        last = self._cache_params.get((scope, prompt.key(0))) if len(prompt) else None
        if last is None:
            return ""
        names = [
            name
            for name in sorted({*last, *prompt.cache_params})
            if last.get(name) != prompt.cache_params.get(name) and self._voids(name)
        ]
        return ", ".join(names)

    def _salt(self, prompt: Prompt, section: Section, scope: Hashable) -> bytes:
        """Scope and the parameters that void the section, as one key."""
        said = blake3(repr(scope).encode(errors="replace"))
        for name, value in sorted(prompt.cache_params.items()):
            if section in self._voids(name):
                said.update(b"%s\0%d\0" % (name.encode(), len(value)) + value)
        return said.digest(_SALT)

    def _voids(self, name: str) -> tuple[Section, ...]:
        figure = self._rules.invalidates.get(name)  # type: ignore[call-overload]
        return () if figure is None else figure.value
