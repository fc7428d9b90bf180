"""Price rows: exact, strict, each with its source and date."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support.tables import each_row

from anaphora import catalog
from anaphora.catalog.load import SHIPPED
from anaphora.catalog.price_data import decode_prices
from anaphora.errors import InvalidCatalog

ROW = """
[[price]]
provider = "acme"
source = "me"
date = 2026-11-15
models = ["a"]
input = 0.1
output = 3
"""
WEEKEND = """
[[weekend]]
provider = "acme"
source = "me"
date = 2026-11-15
since = 2026-01-01
as_at = 12:00:00
"""


def test_decimals_are_exact() -> None:
    (row,) = decode_prices(ROW).prices
    assert (row.input, row.output) == (Decimal("0.1"), Decimal(3))


def test_later_of_two_rows_wins() -> None:
    rows = decode_prices(ROW + ROW.replace("0.1", "0.2"))
    found = rows.find("acme", "a")
    assert found is not None
    assert found.input == Decimal("0.2")
    assert rows.find("acme", "b") is None
    assert rows.find("emca", "a") is None
    assert rows.find("acme", "b", "a") == found


@each_row(
    ("text", "row", "message"),
    [
        ("price = 3", "price", "write rows as [[price]]"),
        ("[[prices]]", "", "'prices' is not a kind of row"),
        ("x = ", "", "not TOML"),
        (ROW + "cached = 1", "price[0] (acme)", "unknown field `cached`"),
        (ROW.replace('source = "me"\n', ""), "price[0] (acme)", "required field `source`"),
        (ROW.replace('"me"', '""'), "price[0] (acme)", "length >= 1"),
        (ROW.replace("date = 2026-11-15\n", ""), "price[0] (acme)", "required field `date`"),
        (ROW.replace("output = 3", 'output = "3"'), "price[0] (acme)", "Expected `decimal`"),
        (ROW.replace("output = 3", "output = true"), "price[0] (acme)", "Expected `decimal`"),
        (ROW.replace("output = 3", "output = -3"), "price[0] (acme)", "must be >= 0"),
        (ROW.replace('["a"]', "[]"), "price[0] (acme)", "length >= 1"),
        (ROW + ROW.replace("0.1", "-0.1"), "price[1] (acme)", "must be >= 0"),
        (ROW + "tiers = [{ above = 5, input = 1 }]", "price[0] (acme)", "required field `output`"),
        (ROW + "tiers = [{ above = 0, input = 1, output = 1 }]", "price[0] (acme)", "`int` >= 1"),
        (
            ROW
            + "tiers = [{ above = 9, input = 1, output = 1 }, { above = 5, input = 1, output = 1 }]",
            "price[0] (acme)",
            "lowest first",
        ),
        (WEEKEND.replace("12:00:00", '"noon"'), "weekend[0] (acme)", "Expected `time`"),
    ],
)
def test_invalid_rows_are_rejected(text: str, row: str, message: str) -> None:
    with pytest.raises(InvalidCatalog) as raised:
        decode_prices(text, file="mine.toml")
    assert (raised.value.file, raised.value.row) == ("mine.toml", row)
    assert message in str(raised.value)


def test_shipped_rows_name_known_models() -> None:
    rows = SHIPPED.prices
    assert len(rows.prices) > 10
    for row in rows.prices:
        assert row.date is not None
        assert row.date.year == 2026
        for model in row.models:
            assert catalog.profile(row.provider, model).id == model
            assert catalog.profile(row.provider, model).known
    assert {row.provider for row in rows.weekends} <= set(catalog.shipped().providers)
