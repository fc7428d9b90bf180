"""A published value that says who published it and when."""

# No postponed annotations in the files whose structs hold figures: msgspec would evaluate each of
# them anew for every kind of figure there is, and that was a third of the catalog's first answer.

import datetime
from typing import Annotated, Generic, NoReturn, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Named: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class Disputed(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What another source, or another platform, publishes for the same thing."""

    value: T
    source: Named


class Figure(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One value with its source, and the day that source was seen to say so."""

    value: T
    source: Named
    date: datetime.date
    verified: bool = True
    """False: no source states it for this model; the value is a careful stand-in."""
    disputed: tuple[Disputed[T], ...] = ()
    """Other published values; `value` is the one to act on."""

    @property
    def published(self) -> tuple[T, ...]:
        """Every value on record, ours first: for rules that must hold under all of them."""
        return (self.value, *(other.value for other in self.disputed))

    def __bool__(self) -> NoReturn:
        # A figure is always "there"; `if profile.strips_thinking:` would be true for every model.
        raise TypeError("a figure has no truth of its own: ask for its .value")
