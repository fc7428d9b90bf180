"""Types of parameters, and options that several commands have."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

ColdMode: TypeAlias = Literal["ask", "refuse", "warn"]
T = TypeVar("T", bound=Callable[..., Any])


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin with `incomplete`, for the shell."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class _KnownName(click.ParamType[str]):
    """A name from a table that is loaded when it is needed."""

    def known(self) -> dict[str, str]:
        """The names, and a description of each."""
        raise NotImplementedError

    def problem(self, value: str) -> str:
        return f"unknown {self.name} {value!r}; there are {', '.join(self.known())}"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.known():
            self.fail(self.problem(value), param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        known = sorted(self.known().items())
        return [
            CompletionItem(name, help=text) for name, text in known if name.startswith(incomplete)
        ]


class WireName(_KnownName):
    """A wire; with `dialects`, also a provider that uses one."""

    name = "wire"

    def __init__(self, *, dialects: bool = False) -> None:
        self._dialects = dialects

    def known(self) -> dict[str, str]:
        from anaphora import wire

        return wire.names() if self._dialects else dict(wire.WIRES)

    def problem(self, value: str) -> str:
        from difflib import get_close_matches

        from anaphora.wire import WIRES

        wires = ", ".join(sorted(WIRES))
        if not self._dialects:
            return f"{value!r} is not a wire; there are {wires}"
        near = get_close_matches(value, self.known(), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        providers = ", ".join(sorted({name.partition("/")[0] for name in self.known()} - {*WIRES}))
        return f"{value!r} is neither a wire ({wires}) nor a provider ({providers}).{hint}"


class ProviderName(_KnownName):
    """A provider of the catalog."""

    name = "provider"

    def known(self) -> dict[str, str]:
        from anaphora import catalog

        return dict.fromkeys(catalog.shipped().providers, "")


class AppProgramName(_KnownName):
    """A program whose grant is known."""

    name = "program"

    def known(self) -> dict[str, str]:
        from anaphora.daemon.home.app_programs import programs

        return {name: one.title for name, one in programs().items()}


class ModelName(click.ParamType[tuple[str, str]]):
    """PROVIDER/MODEL, both known."""

    name = "provider/model"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        from anaphora import catalog
        from anaphora.errors import InvalidRequest

        if isinstance(value, tuple):
            return value
        try:
            return catalog.known_model(value)
        except InvalidRequest as problem:
            self.fail(f"{problem.reason}; `anaphora models` lists the known ones", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from anaphora import catalog

        names = (f"{profile.provider}/{profile.id}" for profile in catalog.models())
        return completions(names, incomplete)


class Time(click.ParamType[float]):
    """A time with its unit, `30m`, or a plain number of `unit`; the value is a number of `unit`."""

    name = "time"

    def __init__(
        self, unit: Literal["s", "h", "d"], *, max: float = math.inf, min_open: bool = False
    ) -> None:
        """`max` is a number of `unit`; with `min_open`, 0 is rejected."""
        self._unit = unit
        self._max = max
        self._min_open = min_open

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from anaphora.yaml_values import TIME_UNITS, seconds_with_unit

        text = str(value).strip()
        seconds = seconds_with_unit(text)
        try:
            number = float(text) if seconds is None else seconds / TIME_UNITS[self._unit]
        except ValueError:
            number = math.nan
        unit = {"s": "seconds", "h": "hours", "d": "days"}[self._unit]
        if not math.isfinite(number):
            examples = {"s": "500ms, 30s, 5m", "h": "30m, 12h, 7d", "d": "12h, 30d, 8w"}[self._unit]
            reason = f"{text!r} is not a time; write {examples}, or a number of {unit}"
            self.fail(reason, param, ctx)
        if number < 0 or number > self._max or (self._min_open and not number):
            least = "more than 0" if self._min_open else "at least 0"
            most = f" and at most {self._max:g} {unit}" if math.isfinite(self._max) else ""
            self.fail(f"{text!r} is out of range: {least}{most}", param, ctx)
        return number


class Dollars(click.ParamType[Decimal]):
    """An amount in dollars, 0 or more."""

    name = "usd"

    def convert(self, value: Any, param: Any, ctx: Any) -> Decimal:
        try:
            amount = Decimal(str(value).removeprefix("$"))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0:
            self.fail(f"{value!r} is not an amount in dollars, such as 0.50", param, ctx)
        return amount


class Cold(NamedTuple):
    mode: ColdMode
    above: Decimal | None
    """The additional cost from which a call counts."""


class ColdParameter(click.ParamType[Cold]):
    """Of `watch --cold`: `refuse`, or with an amount `refuse:0.50`."""

    name = "cold"

    def convert(self, value: Any, param: Any, ctx: Any) -> Cold:
        if isinstance(value, Cold):
            return value
        mode, colon, usd = value.partition(":")
        modes = click.Choice(get_args(ColdMode))
        return Cold(
            modes.convert(mode, param, ctx), Dollars().convert(usd, param, ctx) if colon else None
        )

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return completions(get_args(ColdMode), incomplete)


provider_option = click.option(
    "--provider", type=ProviderName(), help="Provider of the calls, if they do not name it."
)


def selected(names: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names in a comma-separated `--providers`; raises for an unknown one."""
    from anaphora.errors import InvalidRequest

    known = sorted(set(known))
    wanted = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in wanted:
        if name not in known:
            raise InvalidRequest(f"{name!r} is none of {', '.join(known)}", path="--providers")
    return wanted


def past_moment(
    context: click.Context,
    parameter: click.Parameter,
    text: str | None,
    zone: datetime.tzinfo | None = datetime.UTC,
    *,
    whole_day: bool = False,
) -> float | None:
    """A callback for options: a date or an age, in seconds since 1970. Of `whole_day`, the end of
    a day that is named. Without a zone, it is this machine's."""
    from anaphora.yaml_values import seconds_with_unit

    if text is None:
        return None
    if (age := seconds_with_unit(text)) is not None:
        return time.time() - age
    try:
        moment = datetime.datetime.fromisoformat(text)
        if whole_day and len(text) <= len("2026-11-30"):
            moment += datetime.timedelta(days=1)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a date (2026-11-30, 2026-11-30T12:00) nor an age (30m, 24h, 7d)"
        ) from None
