"""The tables of Converse against botocore's service model, which AWS generates from its own."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import each_row

from anaphora import wire
from anaphora.errors import Upstream
from anaphora.wire.bedrock import families, types
from anaphora.wire.bedrock.fields import TABLE
from anaphora.wire.bedrock.params import MARKERS
from anaphora.wire.bedrock.reply import STOPS

session = pytest.importorskip("botocore.session")


@pytest.fixture(scope="module")
def model() -> Any:
    return session.get_session().get_service_model("bedrock-runtime")


def members(model: Any, shape: str) -> set[str]:
    return set(model.shape_for(shape).members)


@each_row("operation", ["Converse", "ConverseStream"])
def test_fields_of_requests(model: Any, operation: str) -> None:
    sent = model.operation_model(operation).input_shape.members
    fields = {name: field for name, field in TABLE.fields.items() if "." not in name}
    assert fields.keys() == sent.keys()
    for name, field in fields.items():
        if field.members is not None and name != families.MORE:  # any JSON there
            stream_only = {"streamProcessingMode"} - sent[name].members.keys()
            assert field.members - stream_only == sent[name].members.keys(), name


def test_kinds_of_blocks(model: Any) -> None:
    assert TABLE.blocks.keys() == {
        *members(model, "ContentBlock"),
        *members(model, "ToolResultContentBlock"),
    }
    assert TABLE.message_fields[""] == members(model, "Message")
    assert members(model, "Tool") >= {TABLE.function, types.CACHE_POINT}
    assert members(model, "SystemContentBlock") <= TABLE.blocks.keys()


def test_values(model: Any) -> None:
    assert set(model.shape_for("CacheTTL").enum) == MARKERS.keys()
    assert set(families.TIERS) == set(model.shape_for("ServiceTierType").enum)
    known = set(model.shape_for("StopReason").enum)
    assert STOPS.keys() <= known


def test_what_is_counted(model: Any) -> None:
    counted = {name for name, field in TABLE.fields.items() if field.counted}
    assert counted == members(model, "ConverseTokensRequest")


@each_row("operation", ["Converse", "ConverseStream", "InvokeModel", "CountTokens"])
def test_errors_have_a_class_of_their_own(model: Any, operation: str) -> None:
    for shape in model.operation_model(operation).error_shapes:
        if shape.name == "ConflictException":
            continue  # of asynchronous calls
        status = shape.metadata["error"]["httpStatusCode"]
        headers = {"x-amzn-errortype": f"{shape.name}:http://internal.amazon.com/coral/"}
        error = wire.get("bedrock").read_error(status, headers, b'{"message":"m"}')
        assert type(error) is not Upstream, shape.name
        assert error.status == status


@each_row("output", ["ConverseStreamOutput"])
def test_events_of_streams(model: Any, output: str) -> None:
    events = {name for name in members(model, output) if not name.endswith("Exception")}
    assert events == {
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
    }
    structs = {
        "ContentBlockDeltaEvent": types.DeltaEvent,
        "ContentBlockStartEvent": types.StartEvent,
        "ContentBlockStopEvent": types.StopEvent,
        "MessageStartEvent": types.MessageStart,
        "MessageStopEvent": types.MessageStop,
        "ConverseStreamMetadataEvent": types.MetadataEvent,
    }
    for shape, struct in structs.items():
        assert set(struct.__struct_fields__) <= members(model, shape) | {"p"}, shape
    usage = set(types.UsageCounts.__struct_fields__)
    assert usage <= members(model, "TokenUsage")
