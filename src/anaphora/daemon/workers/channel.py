"""Messages between two processes over a socket pair, in batches.

    hold = remote(Store.hold)                   a method of a class with a `channel`
    channel.answer(Store.hold, store.hold)      in the process that answers it

What is sent within one turn of the event loop is written together, after what could wait for it
(`sent_later`). Arguments and results are encoded by the types in the signature of the method.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import msgspec

from anaphora import errors
from anaphora.client.failures import log
from anaphora.errors import AnaphoraError, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

_LENGTH = struct.Struct("<I")
#: Seconds that a message may wait for others.
_LATER = 0.005
#: The name of a message that answers another one: its result or its error.
_RESULT, _ERROR = "", "!"
_encode = msgspec.msgpack.Encoder().encode
_NOTHING = msgspec.Raw(_encode(None))


class _Message(msgspec.Struct, array_like=True):
    number: int
    """Positive: an answer with this number is expected. Negative: the answer. 0: none is."""
    name: str
    body: msgspec.Raw


class _Error(msgspec.Struct, array_like=True):
    kind: str
    message: str
    fields: dict[str, Any]


_decode_batch = msgspec.msgpack.Decoder(list[_Message]).decode
_decode_error = msgspec.msgpack.Decoder(_Error).decode


class Gone(Exception):
    """The other process has ended."""


class Operation:
    """How a method's arguments and result are encoded."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.name = method.__qualname__
        hints = get_type_hints(method)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        named = []
        for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
            given = parameter.default
            if parameter.kind is parameter.KEYWORD_ONLY:
                named.append(name)
            fields.append(
                (name, hints[name]) if given is parameter.empty else (name, hints[name], given)
            )
        self.arguments = msgspec.defstruct(method.__name__, fields, array_like=True)
        self.named = tuple(named)
        """The keyword-only arguments, which are the last ones."""
        fields_of = self.arguments.__struct_fields__
        self.fields = fields_of[: len(fields_of) - len(named)]
        self.decode_arguments = msgspec.msgpack.Decoder(self.arguments).decode
        self.decode_result = msgspec.msgpack.Decoder(hints["return"]).decode


_operations: dict[str, Operation] = {}


def operation(method: Callable[..., Any]) -> Operation:
    found = _operations.get(method.__qualname__)
    if found is None:
        found = _operations[method.__qualname__] = Operation(method)
    return found


def remote(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method of a class with a `channel`, answered by the other process."""
    known = operation(method)

    @wraps(method)
    async def ask(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self.channel.ask(known, known.arguments(*args, **kwargs))
        return result

    return ask


def sent(
    method: Callable[Concatenate[Any, P], None], *, later: bool = False
) -> Callable[Concatenate[Any, P], None]:
    """The same without waiting for the other process."""
    known = operation(method)

    @wraps(method)
    def tell(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.channel.tell(known, known.arguments(*args, **kwargs), later=later)

    return tell


sent_later = partial(sent, later=True)
"""With the next message that cannot wait, or soon."""


class Channel(asyncio.Protocol):
    """One end of a socket pair. Used from one event loop."""

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        """`lost` is called when the other process has ended."""
        self._lost = lost
        self._transport: asyncio.WriteTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, tuple[Operation, Callable[..., Any]]] = {}
        self.answer(_Flush.flush, lambda: None)
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._next = 0
        self._batch: list[_Message] = []
        self._writes = False
        """Whether it is written in this turn of the event loop."""
        self._waits: asyncio.TimerHandle | None = None
        self._received = bytearray()
        self.before_write: Callable[[], None] | None = None
        """Called before a batch is written: it may add to it."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Answers under way."""
        self.is_open = True

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    async def ask(self, method: Operation, arguments: msgspec.Struct) -> Any:
        """The result of a method. Raises its `AnaphoraError`, and `Gone`."""
        if not self.is_open:
            raise Gone
        self._next += 1
        number, waiting = self._next, self._loop.create_future()
        self._waiting[number] = waiting
        self._put(_Message(number, method.name, msgspec.Raw(_encode(arguments))))
        try:
            return method.decode_result(await waiting)
        finally:
            self._waiting.pop(number, None)

    def tell(self, method: Operation, arguments: msgspec.Struct, *, later: bool = False) -> None:
        if self.is_open:
            self._put(_Message(0, method.name, msgspec.Raw(_encode(arguments))), later)

    def _put(self, message: _Message, later: bool = False) -> None:
        self._batch.append(message)
        if later:
            if self._waits is None and not self._writes:
                self._waits = self._loop.call_later(_LATER, self._write)
        elif not self._writes:
            self._writes = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
        self._writes = True
        if self.before_write is not None:
            self.before_write()
        batch, self._batch, self._writes = self._batch, [], False
        if self._transport is not None and batch:
            data = _encode(batch)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    async def flush(self) -> None:
        """Returns when the other process has handled all messages so far."""
        await self.ask(_FLUSH, _FLUSH.arguments())

    # ── Answering ────────────────────────────────────────────────────────────────────────────────

    def answer(self, method: Callable[..., Any], act: Callable[..., Any]) -> None:
        """Answers the other process's calls of `method` with `act`."""
        known = operation(method)
        self._answers[known.name] = known, act

    def answer_all(self, kind: type, target: object, *names: str) -> None:
        for name in names:
            self.answer(getattr(kind, name), getattr(target, name))

    def _handle(self, message: _Message) -> None:
        if message.number < 0:
            waiting = self._waiting.get(-message.number)
            if waiting is None or waiting.done():
                return
            if message.name == _ERROR:
                waiting.set_exception(_read_error(message.body))
            else:
                waiting.set_result(message.body)
            return
        try:
            method, act = self._answers[message.name]
            given = method.decode_arguments(message.body)
            values = [getattr(given, name) for name in method.fields]
            if method.named:
                found = act(*values, **{name: getattr(given, name) for name in method.named})
            else:
                found = act(*values)
        except Exception as problem:
            self._failed(message, problem)
            return
        if asyncio.iscoroutine(found):
            task = self._loop.create_task(self._finish(message, found))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif message.number:
            self._put(_Message(-message.number, _RESULT, msgspec.Raw(_encode(found))))

    async def _finish(self, message: _Message, work: Awaitable[Any]) -> None:
        try:
            found = await work
        except Exception as problem:
            self._failed(message, problem)
        else:
            if message.number:
                body = _NOTHING if found is None else msgspec.Raw(_encode(found))
                self._put(_Message(-message.number, _RESULT, body))

    def _failed(self, message: _Message, problem: Exception) -> None:
        if isinstance(problem, Gone):
            return
        if not isinstance(problem, AnaphoraError):
            log(logging.ERROR, f"{message.name}: {type(problem).__name__}", problem)
        if message.number:
            self._put(_Message(-message.number, _ERROR, msgspec.Raw(_encode(_error(problem)))))

    # ── The transport ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._write()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(received, at)[0]
            if len(received) < end:
                break
            # A copy: messages refer to it.
            batch = _decode_batch(bytes(received[at + _LENGTH.size : end]))
            at = end
            for message in batch:
                self._handle(message)
        del received[:at]

    def connection_lost(self, problem: Exception | None) -> None:  # noqa: ARG002
        self.is_open = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone())
        self._lost()

    def close(self) -> None:
        if self._transport is not None:
            self._write()
            self._transport.close()


class _Flush:
    def flush(self) -> None:
        """Answered after all earlier messages."""


_FLUSH = operation(_Flush.flush)


def _error(problem: Exception) -> _Error:
    if not isinstance(problem, AnaphoraError):
        problem = StoreUnavailable(f"internal error: {type(problem).__name__}")
    plain = (str, int, float, bool, type(None))
    fields = {name: value for name, value in vars(problem).items() if isinstance(value, plain)}
    return _Error(type(problem).__name__, str(problem), fields)


def _read_error(body: msgspec.Raw) -> AnaphoraError:
    """The error as it was raised."""
    error = _decode_error(body)
    kind = getattr(errors, error.kind)
    problem: AnaphoraError = kind.__new__(kind)
    problem.args = (error.message,)
    vars(problem).update(error.fields)
    return problem
