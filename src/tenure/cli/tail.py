"""`tenure jobs tail`: what happens to jobs, while it happens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from uuid import UUID

import click

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import job_id
from tenure.cli.job_output import event_line, facts_of
from tenure.cli.output import Exit, complain, say, say_json_line
from tenure.cli.vocabulary import Interpreter, say_told, some_vocabularies
from tenure.lifecycle.records import Event
from tenure.observe.event_stream import EventStream
from tenure.seams import SYSTEM
from tenure.vocabularies import TranslatedEvent, Vocabulary
from tenure.vocabularies import vocabularies as vocabularies_named

START, NOW = "start", "now"


class Teller:
    """Says each event, and remembers where the log was left."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.position: str | None = None

    def tell(self, event: Event, told: Sequence[TranslatedEvent] | None = None) -> None:
        """`told` is the event in other words, where it is not to be told in our own."""
        if told is not None:
            say_told(event, told, as_json=self._as_json)
        elif self._as_json:
            say_json_line(facts_of(event))
        else:
            say(event_line(event))
        self.position = event.position


@click.command()
@common_options
@click.argument("wanted", metavar="[ID]", type=job_id, required=False)
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="Go on after this position of the log; `start` for all of it.  [default: now]",
)
@some_vocabularies
def tail(*, database: str, as_json: bool, wanted: UUID | None, start: str | None, vocabularies: tuple[str, ...]) -> int:
    """Follow the log, each event once and in order, until interrupted.

    With ID, follow that job from its first event to the one that ends it. --json writes one JSON object per line.
    With --vocabulary, events are told in those words instead, and those left out for which they have none.
    """
    chosen = vocabularies_named(vocabularies)
    if wanted is not None and start is not None:
        raise click.UsageError("a job is followed from its first event on; --from is for the whole log")
    return tell_log(database, wanted=wanted, start=start or NOW, for_ever=True, chosen=chosen, as_json=as_json)


def tell_log(
    database: str, *, wanted: UUID | None, start: str, for_ever: bool, chosen: Sequence[Vocabulary], as_json: bool
) -> int:
    """Say the log, or one job's part of it. Whoever interrupts it is told where to go on."""
    teller = Teller(as_json=as_json)
    try:
        run(_tail(database, teller, wanted=wanted, start=start, for_ever=for_ever, chosen=chosen))
    except KeyboardInterrupt:
        if wanted is None and teller.position is not None:
            complain(f"tenure: interrupted; to go on from here: --from {teller.position}")
            return Exit.INTERRUPTED
        raise
    return Exit.OK


async def _tail(
    database: str, teller: Teller, *, wanted: UUID | None, start: str, for_ever: bool, chosen: Sequence[Vocabulary]
) -> None:
    async with opened(database) as store:
        interpreter = Interpreter(store, chosen) if chosen else None
        stream = EventStream(store, SYSTEM.clock)
        if wanted is not None:
            events = stream.tail_job(wanted)
        else:
            if start == NOW:
                start = teller.position = await store.end()
            events = stream.tail(after=None if start == START else start, follow=for_ever)
        async with aclosing(events):
            async for event in events:
                teller.tell(event, await interpreter.translate(event) if interpreter else None)
