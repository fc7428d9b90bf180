"""Days and months of the ledger: UTC, so that a change to summer time moves no limit."""

from __future__ import annotations

import datetime
import functools

_SECONDS = 86_400


def day_of(at: float) -> str:
    """The UTC date of a time, as `YYYY-MM-DD`."""
    return _day(int(at // _SECONDS))


@functools.lru_cache(16)
def _day(number: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(number)).isoformat()


def month_of(day: str) -> str:
    """`YYYY-MM`"""
    return day[:7]


def start_of_day(day: str) -> float:
    return _begin(datetime.date.fromisoformat(day))


def end_of_day(day: str) -> float:
    """When the next day begins, in seconds since 1970."""
    return _begin(datetime.date.fromisoformat(day) + datetime.timedelta(1))


def end_of_month(day: str) -> float:
    """When the next month begins."""
    first = datetime.date.fromisoformat(day).replace(day=1)
    return _begin((first + datetime.timedelta(32)).replace(day=1))


def month_after(day: str) -> str:
    """The first day of the next month."""
    return day_of(end_of_month(day))


def pruning_day(keep_days: float, now: float) -> str:
    """The first day whose entries stay where those of so many days are kept: the first of a month,
    since limits are by month, and never later than the first of this one."""
    return day_of(now - keep_days * _SECONDS)[:8] + "01"


def _begin(date: datetime.date) -> float:
    return float((date - datetime.date(1970, 1, 1)).days * _SECONDS)
