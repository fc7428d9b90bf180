"""Which request is hit: by its own header, by rules of a file, by the dice."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec
from blake3 import blake3

from anaphora.emulator.core.asked import Asked
from anaphora.emulator.core.patterns import provider_pattern
from anaphora.errors import InvalidRequest
from anaphora.yaml_values import YamlValue

from .fault import KINDS, Fault

HEADER = "x-emulator-fault"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, and the requests that it hits: all that match unless it says which of them."""

    fault: Fault
    path: str = "*"
    provider: str = "*"
    nth: tuple[int, ...] = ()
    """Counted among those that match, from 1."""
    every: int | None = None
    rate: float | None = None

    def matches(self, asked: Asked, provider: str) -> bool:
        return fnmatchcase(asked.path, self.path) and fnmatchcase(provider, self.provider)

    def hits(self, count: int, roll: float) -> bool:
        """Whether the `count`th request that matches is hit; `roll` is from 0 to below 1."""
        if self.rate is not None:
            return roll < self.rate
        if self.every is not None:
            return count % self.every == 0
        return count in self.nth if self.nth else True


class Faults(msgspec.Struct, frozen=True):
    """The rules of a file, in its order."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def decode(cls, text: str, file: str) -> Faults:
        """What a file says; anything that it should not is an error with file and line."""
        whole = YamlValue.read(text, file)
        if whole is None:
            return cls()
        rules = whole.fields(("faults",), ("faults",))["faults"].items()
        return cls(tuple(_rule(row) for row in rules))

    def begin(self, seed: int = 0) -> Chooser:
        return Chooser(self, seed)


class Chooser:
    """Faults for one request after the other. The same requests and seed give the same ones."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self._faults = faults
        self._seed = seed
        self._counts = [0] * len(faults.rules)

    def next(self, asked: Asked, provider: str = "") -> Fault | None:
        """The fault of this request. Its own header decides, whatever the rules say; they count
        it all the same."""
        fault = None
        for index, rule in enumerate(self._faults.rules):
            if not rule.matches(asked, provider):
                continue
            self._counts[index] += 1
            count = self._counts[index]
            if fault is None and rule.hits(count, self._roll(index, count)):
                fault = rule.fault
        header = asked.headers.get(HEADER)
        if header is not None:
            fault = from_header(header)
        return None if fault is None else msgspec.structs.replace(fault, at=asked.at)

    def _roll(self, rule: int, count: int) -> float:
        drawn = blake3(b"%d %d %d" % (self._seed, rule, count)).digest(7)
        return int.from_bytes(drawn, "big") / 2**56


def from_header(text: str) -> Fault:
    """`cut; after=3`: the name, and what is said of it."""
    name, *told = (part.strip() for part in text.split(";"))
    if name not in KINDS:
        raise _unfit(f"{name!r} is none of {', '.join(KINDS)}")
    values: dict[str, float | int] = {}
    for part in told:
        field, _, value = part.partition("=")
        try:
            values[field] = int(value) if field == "after" else float(value)
        except ValueError:
            raise _unfit(f"{part!r} is not of the form seconds=2 or after=3") from None
        if not 0 <= values[field] < float("inf"):
            raise _unfit(f"{part!r} is below 0, or has no end")
    if stray := [field for field in values if field not in _told(name)]:
        raise _unfit(f"{name} has no {stray[0]!r}")
    return _fault(name, values.get("seconds"), values.get("after"))


def _unfit(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, path=HEADER)


def _told(name: str) -> tuple[str, ...]:
    """What may be said of a fault."""
    kind = KINDS[name]
    return (
        *(("seconds",) if kind.seconds is not None else ()),
        *(("after",) if kind.after else ()),
    )


def _fault(name: str, seconds: float | None, after: float | None) -> Fault:
    wait = KINDS[name].seconds or 0.0 if seconds is None else float(seconds)
    return Fault(name=name, seconds=wait, after=None if after is None else int(after))


_WHICH = ("nth", "every", "rate")
_FIELDS = ("fault", "seconds", "after", "path", "provider", *_WHICH)


def _rule(row: YamlValue) -> Rule:
    found = row.fields(_FIELDS, ("fault",))
    name = found["fault"].choice(KINDS)
    for field in ("seconds", "after"):
        if field in found and field not in _told(name):
            found[field].wrong(f"{name} has no {field}")
    which = [field for field in _WHICH if field in found]
    if len(which) > 1:
        found[which[1]].wrong(f"{which[0]} and {which[1]} exclude each other")
    return Rule(
        fault=_fault(
            name,
            found["seconds"].seconds() if "seconds" in found else None,
            found["after"].whole(0) if "after" in found else None,
        ),
        path=found["path"].text() if "path" in found else "*",
        provider=provider_pattern(found["provider"]) if "provider" in found else "*",
        nth=found["nth"].numbers() if "nth" in found else (),
        every=found["every"].whole(1) if "every" in found else None,
        rate=found["rate"].number(0, 1) if "rate" in found else None,
    )
