"""Rules that select the requests that get a fault. `fault_effects` changes the responses.

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

A header of the request may select the fault:
`x-emulator-fault: slow-first-byte; seconds=0.5`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, TypeAlias

import msgspec
from blake3 import blake3
from msgspec import Meta

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.yaml_values import read_yaml, seconds_in

from .exchange import EmulatorRequest
from .fault_effects import KINDS, Fault

HEADER = "x-emulator-fault"
#: The largest value of a setting: a month of seconds.
_LONGEST = 30 * 86_400
_SELECTORS = ("nth", "every", "rate")


Count: TypeAlias = Annotated[int, Meta(ge=1)]
Counts: TypeAlias = Count | Annotated[tuple[Count, ...], Meta(min_length=1)]
"""One of several requests, or a list of them; counted from 1."""


class FaultRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault, and the requests that get it: all that match, unless `nth`, `every` or `rate`
    selects some of them."""

    fault: str | int
    seconds: float | str | None = None
    after: Annotated[int, Meta(ge=0)] | None = None
    path: str = "*"
    provider: str = "*"
    host: str = "*"
    """A host behind a router: only requests that the router sends there get the fault."""
    nth: Counts | None = None
    every: Count | None = None
    rate: Annotated[float, Meta(ge=0, le=1)] | None = None

    def __post_init__(self) -> None:
        name = str(self.fault)
        if name not in KINDS:
            raise ValueError(f"fault: {name!r} is none of {', '.join(KINDS)}")
        for field in ("seconds", "after"):
            if getattr(self, field) is not None and field not in KINDS[name].settings:
                raise ValueError(f"{field}: {name} has no {field}")
        selectors = [field for field in _SELECTORS if getattr(self, field) is not None]
        if len(selectors) > 1:
            first, second = selectors[:2]
            raise ValueError(f"{second}: give {first} or {second}, not both")
        check_provider(self.provider)
        self.to_fault()

    def to_fault(self) -> Fault:
        return _fault(str(self.fault), self.seconds, self.after)

    def matches(self, request: EmulatorRequest, provider: str, host: str | None = None) -> bool:
        if (host is None) != (self.host == "*") or not fnmatchcase(host or "", self.host):
            return False
        return fnmatchcase(request.path, self.path) and fnmatchcase(provider, self.provider)

    def applies(self, count: int, roll: float) -> bool:
        """Whether the `count`th matching request gets the fault; `roll` is from 0 to below 1."""
        if self.rate is not None:
            return roll < self.rate
        if self.every is not None:
            return count % self.every == 0
        return counts(self.nth, count)


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[FaultRule, ...] = msgspec.field(default=(), name="faults")

    @classmethod
    def decode(cls, text: str, file: str) -> Faults:
        """Reads a YAML file; errors name file and line."""
        return read_yaml(text, file, cls)[0]

    def selector(self, seed: int = 0) -> FaultSelector:
        return FaultSelector(self, seed)


class FaultSelector:
    """Selects the fault of each request. The same requests and seed give the same faults."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self._rules = faults.rules
        self._seed = seed
        self._counts = [0] * len(faults.rules)

    def next(
        self, request: EmulatorRequest, provider: str = "", host: str | None = None
    ) -> Fault | None:
        """The fault of a request: by its header, otherwise by the rules, which count every
        request. With `host`, the fault of that host behind a router, by rules that name it."""
        fault = None
        for index, rule in enumerate(self._rules):
            if not rule.matches(request, provider, host):
                continue
            self._counts[index] += 1
            count = self._counts[index]
            drawn = blake3(b"%d %d %d" % (self._seed, index, count)).digest(7)
            if fault is None and rule.applies(count, int.from_bytes(drawn) / 2**56):
                fault = rule.to_fault()
        header = request.headers.get(HEADER)
        if header is not None and host is None:
            fault = parse_header(header)
        return fault


def parse_header(text: str) -> Fault:
    """Reads `cut; after=3`: the name and its settings."""
    name, *parts = (part.strip() for part in text.split(";"))
    if name not in KINDS:
        raise InvalidRequest(f"{name!r} is none of {', '.join(KINDS)}", path=HEADER)
    values: dict[str, float | int] = {}
    for part in parts:
        field, _, value = part.partition("=")
        try:
            values[field] = int(value) if field == "after" else float(value)
        except ValueError:
            raise InvalidRequest(
                f"{part!r} is not of the form seconds=2 or after=3", path=HEADER
            ) from None
        if not 0 <= values[field] <= _LONGEST:
            raise InvalidRequest(f"{part!r} is not between 0 and {_LONGEST:,}", path=HEADER)
        if field not in KINDS[name].settings:
            raise InvalidRequest(f"{name} has no {field!r}", path=HEADER)
    return _fault(name, values.get("seconds"), values.get("after"))


def _fault(name: str, seconds: float | str | None, after: float | None) -> Fault:
    wait = KINDS[name].seconds or 0.0 if seconds is None else seconds_in(seconds, "seconds")
    if not wait <= _LONGEST:
        raise ValueError(f"seconds: expected at most {_LONGEST:,}, found {wait:g}")
    return Fault(name=name, seconds=wait, after=None if after is None else int(after))


def counts(nth: Counts | None, count: int) -> bool:
    """Whether a rule with this `nth` applies to the `count`th request."""
    return nth is None or count in ((nth,) if isinstance(nth, int) else nth)


def check_provider(pattern: str) -> None:
    """A provider's name, or a pattern such as `open*`. A name must be a known one."""
    known = dict.fromkeys(row.provider for row in catalog.dialects().rows)
    if not any(letter in pattern for letter in "*?[") and pattern not in known:
        raise ValueError(f"provider: {pattern!r} is none of the providers {', '.join(known)}")
