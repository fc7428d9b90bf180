"""OpenTelemetry's histograms for generative AI: tokens, how long a call and its beginning took."""

from __future__ import annotations

from anaphora import __version__
from anaphora.client.response import Record

from .attributes import starting
from .exported import Bounded, error_type, word
from .extras import explained

try:
    from opentelemetry import metrics
except ModuleNotFoundError as problem:
    raise explained(
        problem, "meters", module="opentelemetry", package="opentelemetry-api"
    ) from None

#: The boundaries that the conventions ask for: powers of 4, and of 2.
_TOKENS = [float(4**power) for power in range(14)]
_SECONDS = [0.01 * 2**power for power in range(14)]

#: A histogram is kept for each model; a name too many is `other`.
_MOST_MODELS = 200


class Meters:
    """Watches with a meter; without one, the meter of the provider that is set globally."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        if meter is None:
            meter = metrics.get_meter("anaphora", __version__)
        self._models = Bounded(_MOST_MODELS)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "Time from sending a streaming request to the first chunk of its answer.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def __call__(self, record: Record) -> None:
        shared = starting(record)
        shared["gen_ai.request.model"] = self._models(word(record.model))
        if record.answered_by is not None:
            shared["gen_ai.response.model"] = self._models(word(record.answered_by))
        for kind, tokens in (("input", record.usage.input), ("output", record.usage.output)):
            if tokens is not None:
                self._tokens.record(tokens, {**shared, "gen_ai.token.type": kind})
        if record.streamed and record.first is not None:
            self._first.record(record.first, shared)
        if (error := error_type(record.error)) is not None:
            shared = {**shared, "error.type": error}
        self._seconds.record(record.seconds, shared)
