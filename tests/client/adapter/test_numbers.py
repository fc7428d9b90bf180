"""Numbers as serde_json writes them, so that hashes agree between languages."""

from __future__ import annotations

import json
import struct
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.client.adapter.hashing import double, single


@each_row(
    "value, written",
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (0.7, "0.7"),
        (1.0, "1.0"),
        (2.0, "2.0"),
        (100.0, "100.0"),
        (0.3333333333333333, "0.33333334"),
        (1.2345678, "1.2345678"),
        # Where digits end and exponents begin.
        (1e-5, "0.00001"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1e12, "1000000000000.0"),
        (1.234e12, "1234000000000.0"),
        (1e13, "1e13"),
        (1e16, "1e16"),
        (1e21, "1e21"),
        (1.25e21, "1.25e21"),
        # The ends of the range, and the step from normal to subnormal.
        (3.4028234663852886e38, "3.4028235e38"),
        (1.1754943508222875e-38, "1.1754944e-38"),
        (1.401298464324817e-45, "1e-45"),
        # The bound itself is the shortest form, which holds for even numbers only.
        (33554450.0, "33554450.0"),
        (9000000000.0, "9000000000.0"),
        (34366720000.0, "34366720000.0"),
        # Halfway between two shortest forms: the even digit.
        (305404.125, "305404.12"),
        (8099.03125, "8099.0312"),
    ],
)
def test_single_is_written_as_by_serde_json(value: float, written: str) -> None:
    assert single(value) == written


@each_row(
    "value, written",
    [
        (0.0, "0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (1e-6, "1e-6"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (123456789012345.67, "123456789012345.67"),
        (1.5e300, "1.5e300"),
        (5e-324, "5e-324"),
        (-2.5, "-2.5"),
    ],
)
def test_double_is_written_as_by_serde_json(value: float, written: str) -> None:
    assert double(value) == written


def as_single(value: float) -> float:
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


#: Every double up to here is rounded to a single; more overflows.
LARGEST = 3.4028235e38
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(singles)
def test_single_round_trips(value: float) -> None:
    assert as_single(float(single(value))) == value


@given(singles)
@example(2.0**-44)
@example(2.0**100)
@example(9.5367431640625e-07)
def test_digits_are_the_shortest(value: float) -> None:
    digits = Decimal(single(value)).normalize().as_tuple().digits
    for fewer in range(1, len(digits)):
        shorter = float(f"{value:.{fewer - 1}e}")
        assert abs(shorter) > LARGEST or as_single(shorter) != value


@given(singles.filter(bool))
def test_digits_equal_an_independent_printers(value: float) -> None:
    numpy = pytest.importorskip("numpy")
    theirs = numpy.format_float_scientific(numpy.float32(value), unique=True)
    assert Decimal(single(value)) == Decimal(theirs)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_round_trips_through_json(value: float) -> None:
    assert json.loads(double(value)) == value


def test_overflow_is_an_error() -> None:
    with pytest.raises(OverflowError):
        single(3.5e38)
