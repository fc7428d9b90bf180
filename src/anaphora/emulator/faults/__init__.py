"""Faults to inject.

    faults = Faults.decode(text, file)            rules of a YAML file, or Faults() for none
    selector = faults.selector(seed)              counts requests, draws random numbers
    fault = selector.next(request, provider)      by header, else by the first rule that applies
    fault.apply(response)                         the faulty response

A file selects the requests of each fault:

    faults:
      - fault: rate-limit       # about every tenth request
        seconds: 2
        rate: 0.1
      - fault: cut              # the second and the fifth of these, after three events
        after: 3
        nth: [2, 5]
        path: /v1/messages
        provider: anthropic

A request may ask for a fault itself: `x-emulator-fault: slow-drip; seconds=0.5`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec
from blake3 import blake3

from anaphora import catalog
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.errors import InvalidRequest
from anaphora.yaml_values import YamlValue

from .kinds import KINDS, Fault

__all__ = ["HEADER", "KINDS", "Fault", "FaultSelector", "Faults"]

HEADER = "x-emulator-fault"
_SELECTORS = ("nth", "every", "rate")
_FIELDS = ("fault", "seconds", "after", "path", "provider", *_SELECTORS)


class FaultRule(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, and the requests that get it: all that match, unless `nth`, `every` or `rate`
    selects some of them."""

    fault: Fault
    path: str = "*"
    provider: str = "*"
    nth: tuple[int, ...] = ()
    """Counted among the requests that match, from 1."""
    every: int | None = None
    rate: float | None = None

    def matches(self, request: EmulatorRequest, provider: str) -> bool:
        return fnmatchcase(request.path, self.path) and fnmatchcase(provider, self.provider)

    def applies(self, count: int, roll: float) -> bool:
        """Whether the `count`th matching request gets the fault; `roll` is from 0 to below 1."""
        if self.rate is not None:
            return roll < self.rate
        if self.every is not None:
            return count % self.every == 0
        return count in self.nth if self.nth else True


class Faults(msgspec.Struct, frozen=True):
    """The rules of a file, in its order."""

    rules: tuple[FaultRule, ...] = ()

    @classmethod
    def decode(cls, text: str, file: str) -> Faults:
        """Reads a YAML file; errors name file and line."""
        root = YamlValue.read(text, file)
        if root is None:
            return cls()
        rows = root.fields(("faults",), ("faults",))["faults"].items()
        return cls(tuple(_rule(row) for row in rows))

    def selector(self, seed: int = 0) -> FaultSelector:
        return FaultSelector(self, seed)


class FaultSelector:
    """Selects the fault of each request. The same requests and seed give the same faults."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self._rules = faults.rules
        self._seed = seed
        self._counts = [0] * len(faults.rules)

    def next(self, request: EmulatorRequest, provider: str = "") -> Fault | None:
        """The fault of a request. Its own header decides; the rules count it nevertheless."""
        fault = None
        for index, rule in enumerate(self._rules):
            if not rule.matches(request, provider):
                continue
            self._counts[index] += 1
            count = self._counts[index]
            if fault is None and rule.applies(count, self._roll(index, count)):
                fault = rule.fault
        header = request.headers.get(HEADER)
        if header is not None:
            fault = parse_header(header)
        return None if fault is None else msgspec.structs.replace(fault, now=request.now)

    def _roll(self, rule: int, count: int) -> float:
        drawn = blake3(b"%d %d %d" % (self._seed, rule, count)).digest(7)
        return int.from_bytes(drawn, "big") / 2**56


def parse_header(text: str) -> Fault:
    """Reads `cut; after=3`: the name and its settings."""
    name, *parts = (part.strip() for part in text.split(";"))
    if name not in KINDS:
        raise _invalid(f"{name!r} is none of {', '.join(KINDS)}")
    values: dict[str, float | int] = {}
    for part in parts:
        field, _, value = part.partition("=")
        try:
            values[field] = int(value) if field == "after" else float(value)
        except ValueError:
            raise _invalid(f"{part!r} is not of the form seconds=2 or after=3") from None
        if not 0 <= values[field] < float("inf"):
            raise _invalid(f"{part!r} is negative or infinite")
        if field not in KINDS[name].settings:
            raise _invalid(f"{name} has no {field!r}")
    return _fault(name, values.get("seconds"), values.get("after"))


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, path=HEADER)


def _fault(name: str, seconds: float | None, after: float | None) -> Fault:
    wait = KINDS[name].seconds or 0.0 if seconds is None else float(seconds)
    return Fault(name=name, seconds=wait, after=None if after is None else int(after))


def _rule(row: YamlValue) -> FaultRule:
    fields = row.fields(_FIELDS, ("fault",))
    name = fields["fault"].choice(KINDS)
    for field in ("seconds", "after"):
        if field in fields and field not in KINDS[name].settings:
            fields[field].wrong(f"{name} has no {field}")
    selectors = [field for field in _SELECTORS if field in fields]
    if len(selectors) > 1:
        fields[selectors[1]].wrong(f"{selectors[0]} and {selectors[1]} exclude each other")
    return FaultRule(
        fault=_fault(
            name,
            fields["seconds"].seconds() if "seconds" in fields else None,
            fields["after"].whole(0) if "after" in fields else None,
        ),
        path=fields["path"].text() if "path" in fields else "*",
        provider=provider_pattern(fields["provider"]) if "provider" in fields else "*",
        nth=fields["nth"].numbers() if "nth" in fields else (),
        every=fields["every"].whole(1) if "every" in fields else None,
        rate=fields["rate"].number(0, 1) if "rate" in fields else None,
    )


def provider_pattern(value: YamlValue) -> str:
    """A provider's name, or a pattern such as `open*`. A name must be a known one."""
    pattern = value.text()
    known = dict.fromkeys(row.provider for row in catalog.dialects().rows)
    if not any(letter in pattern for letter in "*?[") and pattern not in known:
        value.wrong(f"{pattern!r} is none of the providers {', '.join(known)}")
    return pattern
