"""Recorded requests to the clouds get the kind of answer at the emulator that they got there."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl, unquote

from support.clouds import Json, all_records, needs_clouds
from support.exchanges import rows_of
from support.tables import table

from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest

PREFIXES = {"bedrock": "/bedrock", "bedrock-mantle": "/bedrock", "azure": "/azure", "vertex": ""}
KEYS = {
    "authorization": "Bearer k",
    "x-goog-api-key": "k",
    "api-key": "k",
    "anthropic-version": "2023-06-01",
}
#: Answers that depend on more than the request, or on what the emulator does not know.
OTHERS = {
    "8495babd0441fe35",  # Text Completions of a Claude before Messages
    "a192040cfa588cc3",  # a web page that may not be read
    "8bcd634657ec71a0",  # the same
    "4d5d3975c13aab5e",  # an unknown key
    "e5cac117018927ea",  # a rate limit
    "60f118703d49c218",  # an overflow of a window that is not in the catalog
}


def recorded() -> list[Json]:
    unread = "bedrock_invoke_other"
    return [each for each in all_records() if each["wire"] != unread and each["id"] not in OTHERS]


@needs_clouds
@table(rows_of(recorded()))
def test_the_answer_has_the_recorded_status(record: Json) -> None:
    # Models of these accounts are the recordings' own, except one that nobody has.
    unknown = "invalid" in record["path"]
    engine = Engine(EmulatorOptions(any_model=not unknown))
    request = EmulatorRequest(
        method="POST",
        path=PREFIXES[record["cloud"]] + unquote(record["path"]),
        query=dict(parse_qsl(record["query"] or "")),
        headers={**KEYS, **record["request_headers"]},
        body=(record["request"] or "").encode(),
    )
    answer = engine.respond(request)
    assert answer.status == record["status"], answer.body
    if answer.status != 200:
        assert json.loads(answer.body).keys() <= json.loads(record["response"]).keys()
        recorded = json.loads(record["response"]).get("message", "")
        assert json.loads(answer.body).get("message", "").startswith(recorded)
