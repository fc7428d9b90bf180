"""Whose cache it is, under which parameters: what makes two equal prefixes different entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from anaphora.catalog import CacheRules
from anaphora.values import Section

from .prompt import Prompt

_SECTIONS: tuple[Section, ...] = ("tools", "system", "messages")
_REMEMBERED = 10_000

Salted = Callable[[int], Hashable]


class Account:
    """The scope of keys. A parameter that voids a section makes other keys of that section's."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._knobs: OrderedDict[Hashable, dict[str, bytes]] = OrderedDict()
        self._salts: dict[Hashable, dict[Section, Hashable]] = {}
        """By scope and parameters, which are the same from call to call."""

    def __len__(self) -> int:
        return len(self._knobs)

    def salted(self, prompt: Prompt, scope: Hashable) -> Salted:
        """The key of a block, by its position."""
        asked = scope, tuple(prompt.knobs.items())
        salts = self._salts.get(asked)
        if salts is None:
            if len(self._salts) >= _REMEMBERED:
                self._salts.clear()
            salts = self._salts[asked] = {
                section: (scope, self._salt(prompt, section)) for section in _SECTIONS
            }
        keyed = prompt.keyed

        def salted(position: int) -> Hashable:
            section, key = keyed(position)
            return salts[section], key

        return salted

    def remember(self, prompt: Prompt, scope: Hashable) -> None:
        if len(prompt):
            key = scope, prompt.key(0)
            self._knobs[key] = dict(prompt.knobs)
            self._knobs.move_to_end(key)
            if len(self._knobs) > _REMEMBERED:
                self._knobs.popitem(last=False)

    def changed(self, prompt: Prompt, scope: Hashable) -> str:
        """The parameters that differ from the last call that began like this one, and void it."""
        last = self._knobs.get((scope, prompt.key(0))) if len(prompt) else None
        if last is None:
            return ""
        names = [
            name
            for name in sorted({*last, *prompt.knobs})
            if last.get(name) != prompt.knobs.get(name) and self._voids(name)
        ]
        return ", ".join(names)

    def _salt(self, prompt: Prompt, section: Section) -> Hashable:
        return tuple(
            (name, value)
            for name, value in sorted(prompt.knobs.items())
            if section in self._voids(name)
        )

    def _voids(self, name: str) -> tuple[Section, ...]:
        figure = self._rules.invalidates.get(name)  # type: ignore[call-overload]
        return () if figure is None else figure.value
