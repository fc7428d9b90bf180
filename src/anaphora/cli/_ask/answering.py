"""A question that is asked: what is printed of it, however it ends."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import click

from anaphora.client.client import AsyncClient
from anaphora.client.session import PrefixWarning
from anaphora.errors import AnaphoraError

from . import failing, report
from .choosing import Chosen, Source
from .conversations import Kept
from .talking import Outcome, Talk, Wish
from .voice import Voice

_INTERRUPTED = 130


class Answering:
    def __init__(
        self,
        source: Source,
        chosen: Chosen,
        wish: Wish,
        kept: Kept | None,
        voice: Voice,
        *,
        as_json: bool,
    ) -> None:
        self._source = source
        self._chosen = chosen
        self._wish = wish
        self._kept = kept
        self._voice = voice
        self._as_json = as_json

    def preview(self) -> None:
        """Says what would happen; nothing is sent."""
        self._introduce()
        chosen = self._chosen
        client = AsyncClient(chosen.providers, chosen.routes)
        told = Talk(client, chosen, self._wish, self._kept, self._voice).preview()
        if self._as_json:
            self._print_json(told)
        else:
            click.echo("\n".join(report.preview_lines(told)))

    def hold(self) -> None:
        """Asks, and says the answer."""
        self._introduce()
        try:
            with warnings.catch_warnings():
                # It is among the notices, which are told.
                warnings.simplefilter("ignore", PrefixWarning)
                outcome = asyncio.run(self._talk())
        except KeyboardInterrupt:
            self._interrupted()
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except AnaphoraError as problem:
            self._voice.warn(failing.told(problem, self._chosen))
            code = failing.code(problem, schema=self._wish.output is not None)
            raise click.exceptions.Exit(code) from None
        self._say(outcome)
        unkept = self._kept is not None and not outcome.kept
        if unkept or outcome.stop_reason == "turns":
            raise click.exceptions.Exit(failing.FOUND)

    async def _talk(self) -> Outcome:
        def waiting(seconds: float) -> None:
            self._voice.aside(f"waiting {seconds:.1f} s: the provider's limits")

        chosen = self._chosen
        async with AsyncClient(chosen.providers, chosen.routes, on_wait=waiting) as client:
            return await Talk(client, chosen, self._wish, self._kept, self._voice).hold()

    def _introduce(self) -> None:
        """What is to be known before anybody is asked."""
        chosen, kept, voice = self._chosen, self._kept, self._voice
        if kept is not None and kept.torn:
            voice.aside(f"note: the last line of {kept.path} was not whole, and is left out")
        if self._source.emulated:
            voice.aside(f"emulated: nobody is asked; the words of {chosen.model} are made up")
        elif self._source.made_up:
            key = chosen.providers[chosen.name].provider.key
            voice.aside(f"no llm.yaml: asking {chosen.name}/{chosen.model} with the key from {key}")
        for one in chosen.providers.values():
            for notice in one.notices:
                voice.aside(f"note: {notice}")

    def _say(self, outcome: Outcome) -> None:
        kept, voice, schema = self._kept, self._voice, self._wish.output is not None
        if self._as_json:
            told = report.told(outcome, kept, schema=schema)
            self._print_json(told | {"config": self._source.place})
            return
        if schema and outcome.stop_reason != "turns":
            self._print_json(outcome.last.parsed)
        for notice in report.notices(outcome):
            voice.aside(notice)
        if (early := report.ended(outcome, kept)) is not None:
            voice.warn(early)
        voice.aside(report.line(outcome, kept))

    def _interrupted(self) -> None:
        said = self._voice.said
        if self._as_json:
            self._print_json({"answer": said, "interrupted": True})
        elif said and self._wish.output is not None:
            click.echo(said)
        self._voice.warn("interrupted; the answer is not whole, and is not kept")

    def _print_json(self, value: Any) -> None:
        click.echo(failing.hidden(report.as_json(value), self._chosen))
