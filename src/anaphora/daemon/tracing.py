"""OpenTelemetry: a span for each request, continuing the app's trace, and one for each call in it.

Enabled if OpenTelemetry is set up: the process runs under `opentelemetry-instrument` or has a
variable `OTEL_…`. Without an SDK, spans are not exported and cost almost nothing.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

from anaphora.client.observe import Watcher
from anaphora.serving.exchange import HttpExchange
from anaphora.version import __version__

from .monitoring import route_of

_SERVER_ERROR = 500
#: Headers with the context of a trace.
_PROPAGATED = ("traceparent", "tracestate", "baggage")


def is_set_up() -> bool:
    if "opentelemetry.trace" in sys.modules:
        return True
    named = any(name.startswith("OTEL_") for name in os.environ)
    return named and find_spec("opentelemetry") is not None


def call_traces() -> tuple[Watcher, ...]:
    """The watcher that makes a span for each call to a provider."""
    if not is_set_up():
        return ()
    from anaphora.client.observe import Traces

    return (Traces(),)


class RequestTraces:
    """Makes a span for each request, the parent of the spans of its calls."""

    def __init__(self, tracer: Any = None) -> None:
        from opentelemetry import context, propagate, trace

        self._context, self._propagate, self._trace = context, propagate, trace
        self._tracer = tracer or trace.get_tracer("anaphora.daemon", __version__)

    @classmethod
    def enabled(cls) -> RequestTraces | None:
        return cls() if is_set_up() else None

    def begin(self, exchange: HttpExchange) -> Any:
        """Begins the span of a request, which is current in the task that answers it."""
        carrier = {name: exchange.headers[name] for name in _PROPAGATED if name in exchange.headers}
        parent = self._propagate.extract(carrier)
        route = route_of(exchange.path)
        span = self._tracer.start_span(
            f"{exchange.method[:20]} {route}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": exchange.method[:20], "http.route": route},
        )
        # Not detached, since the task ends with the request.
        self._context.attach(self._trace.set_span_in_context(span, parent))
        return span

    def end(self, span: Any, app: str, status: int, request_id: str) -> None:
        if span.is_recording():
            span.set_attribute("anaphora.request_id", request_id)
            if app:
                span.set_attribute("anaphora.app", app)
            if status:
                span.set_attribute("http.response.status_code", status)
            if not status or status >= _SERVER_ERROR:
                span.set_status(self._trace.StatusCode.ERROR)
        span.end()
