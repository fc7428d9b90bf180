"""Every recorded exchange of every wire round trips: requests keep their meaning, replies lose
nothing. What may differ is listed in `analysis.roundtrip`."""

from __future__ import annotations

import pytest
from support.exchanges import Json, needs_exchanges, records

from anaphora import wire
from anaphora.analysis import roundtrip

EXCHANGES = [record for name in wire.WIRES for record in records(name)]


@needs_exchanges
@pytest.mark.parametrize("record", EXCHANGES, ids=lambda r: f"{r['wire']}-{r['host']}-{r['id']}")
def test_exchange_round_trips(record: Json) -> None:
    fields = {name: value for name, value in record.items() if value is not None}
    result = roundtrip.check(roundtrip.RecordedExchange(**fields))
    assert result.good, result


@needs_exchanges
def test_there_are_exchanges_of_every_hosted_wire() -> None:
    assert {record["wire"] for record in EXCHANGES} == set(wire.WIRES) - {"ollama"}
