"""Every recorded exchange of every wire round trips: requests keep their meaning, replies lose
nothing. What may differ is listed in `support.roundtrip`."""

from __future__ import annotations

import pytest
from support.exchanges import Json, needs_exchanges, records, rows_of
from support.roundtrip import RecordedExchange, rules
from support.tables import check_rows

from anaphora import wire


def check(record: Json) -> None:
    fields = {name: value for name, value in record.items() if value is not None}
    result = rules.check(RecordedExchange(**fields))
    assert result.good, result


@needs_exchanges
@pytest.mark.parametrize("name", sorted(wire.WIRES))
def test_exchanges_round_trip(name: str) -> None:
    check_rows(rows_of(records(name)), check)
