"""What a real engine refuses, read from the structure of its answer."""

from __future__ import annotations

import pytest
from support.llama import Answer, Llama
from support.llama_calls import WIRES, call, request, streaming

from anaphora import errors, wire
from anaphora.errors import Upstream
from anaphora.prompt import Call

every_wire = pytest.mark.parametrize("name", WIRES)
streamed_or_not = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])


def read(name: str, given: Answer) -> Upstream:
    assert given.status >= 400
    error = wire.get(name).read_error(given.status, given.headers, given.body)
    assert error.status == given.status
    assert str(error)
    return error


def sent(llama: Llama, name: str, made: Call, streamed: bool = False) -> Answer:
    return llama.send(request(name, streaming(made) if streamed else made))


@every_wire
@streamed_or_not
def test_a_prompt_beyond_the_context_is_an_overflow(
    llama: Llama, name: str, streamed: bool
) -> None:
    error = read(name, sent(llama, name, call("x" * 20_000), streamed))
    assert type(error) is errors.ContextOverflow
    assert error.code == "exceed_context_size_error"
    assert not error.retryable


@every_wire
@streamed_or_not
def test_a_bad_value_is_a_rejected_request(llama: Llama, name: str, streamed: bool) -> None:
    made = call("hi", extras={name: '{"temperature":"warm"}'})
    error = read(name, sent(llama, name, made, streamed))
    assert type(error) is errors.RequestRejected
    assert "temperature" in str(error)


@every_wire
def test_a_body_that_is_no_json_is_a_rejected_request(llama: Llama, name: str) -> None:
    path = request(name, call("hi")).path
    assert type(read(name, llama.post(path, b'{"model":'))) is errors.RequestRejected


@every_wire
def test_an_unknown_path_is_not_found(llama: Llama, name: str) -> None:
    error = read(name, llama.post("/v1/nothing", b"{}"))
    assert type(error) is errors.NotFound
    assert error.code == "not_found_error"


@every_wire
def test_an_error_read_on_one_wire_can_be_written_on_another(llama: Llama, name: str) -> None:
    error = read(name, sent(llama, name, call("x" * 20_000)))
    for other in WIRES:
        status, headers, body = wire.get(other).write_error(error)
        again = wire.get(other).read_error(status, headers, body)
        assert (type(again), str(again)) == (type(error), str(error))
