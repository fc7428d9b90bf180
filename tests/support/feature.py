"""One feature that a call may use."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from support.call_views import View
from support.feature_calls import Make


class Feature(NamedTuple):
    group: str
    name: str
    make: Make
    view: View
    about: str = ""
    """The path that a notice about its loss names, or a parent of it."""

    @property
    def owned(self) -> bool:
        """Whether it is specific to the wire that it is made for."""
        return self.name.endswith("its own")


Row: TypeAlias = tuple[str, Make, View] | tuple[str, Make, View, str]


def rows(group: str, *table: Row) -> list[Feature]:
    return [Feature(group, *row) for row in table]
