"""`tenure jobs tail`, and what it shares with `tenure events`: printing the log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import click

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import GivenId, job_id, resolve_id
from tenure.cli.job_output import StreamedEvents
from tenure.cli.output import Exit, print_error, print_json_line
from tenure.cli.vocabulary import print_translated_events, vocabularies_option
from tenure.lifecycle.records import Event
from tenure.observe.event_stream import EventStream
from tenure.observe.event_translator import EventTranslator
from tenure.seams import SYSTEM
from tenure.views.jobs import record_view
from tenure.vocabularies import TranslatedEvent, Vocabulary
from tenure.vocabularies import vocabularies as vocabularies_named

START, NOW = "start", "now"


@click.command()
@common_options
@click.argument("wanted", metavar="[ID]", type=job_id, required=False)
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="Start after this position of the log; `start` for its beginning.  [default: now]",
)
@vocabularies_option
def tail(
    *, database: str, as_json: bool, wanted: GivenId | None, start: str | None, vocabularies: tuple[str, ...]
) -> int:
    """Print new events as they are committed, until interrupted.

    With ID, print all events of that job until it ends. --json prints a JSON object per line. With --vocabulary, events
    are translated; events without a translation are omitted.
    """
    chosen = vocabularies_named(vocabularies)
    if wanted is not None and start is not None:
        raise click.UsageError("--from cannot be used with ID: the events of a job are printed from the first")
    return print_log(database, wanted=wanted, start=start or NOW, follow=True, chosen=chosen, as_json=as_json)


def print_log(
    database: str, *, wanted: GivenId | None, start: str, follow: bool, chosen: Sequence[Vocabulary], as_json: bool
) -> int:
    """Print the log, or the events of one job. On an interrupt, print the position to resume from."""
    printer = EventPrinter(as_json=as_json, of_one_job=wanted is not None)
    try:
        run(_print_log(database, printer, wanted=wanted, start=start, follow=follow, chosen=chosen))
    except KeyboardInterrupt:
        if wanted is None and printer.position is not None:
            print_error(f"interrupted; resume with: --from {printer.position}")
            return Exit.INTERRUPTED
        raise
    return Exit.OK


class EventPrinter:
    """Prints events, and keeps the position of the last one."""

    def __init__(self, *, as_json: bool, of_one_job: bool) -> None:
        self._as_json = as_json
        self._lines = StreamedEvents(of_one_job=of_one_job)
        self.position: str | None = None

    def print(self, event: Event, translated: Sequence[TranslatedEvent] | None) -> None:
        """Print an event, or its translation."""
        if translated is not None:
            print_translated_events(event, translated, as_json=self._as_json)
        elif self._as_json:
            print_json_line(record_view(event))
        else:
            self._lines.print(event)
        self.position = event.position


async def _print_log(
    database: str,
    printer: EventPrinter,
    *,
    wanted: GivenId | None,
    start: str,
    follow: bool,
    chosen: Sequence[Vocabulary],
) -> None:
    async with opened(database) as store:
        translator = EventTranslator(store, chosen) if chosen else None
        stream = EventStream(store, SYSTEM.clock)
        if wanted is not None:
            events = stream.tail_job(await resolve_id(store, wanted))
        else:
            if start == NOW:
                start = printer.position = await store.end()
            events = stream.tail(after=None if start == START else start, follow=follow)
        async with aclosing(events):
            async for event in events:
                printer.print(event, await translator.translate(event) if translator else None)
