"""`tenure events`: the log of the whole database, from any position."""

from __future__ import annotations

import click

from tenure.cli.database import common_options
from tenure.cli.tail import START, print_log
from tenure.cli.vocabulary import vocabularies_option
from tenure.vocabularies import vocabularies as vocabularies_named


@click.command()
@common_options
@click.option("--from", "start", metavar="POSITION", default=START, help="Start after this position.  [default: start]")
@click.option("--follow", is_flag=True, help="Continue with new events, until interrupted.")
@vocabularies_option
def events(*, database: str, as_json: bool, start: str, follow: bool, vocabularies: tuple[str, ...]) -> int:
    """Print the log: each event once, in order.

    It ends at the last settled event, unless --follow is given. With --json every event has its position. An
    interrupted reader resumes with --from and misses no event, not even one that commits late. With --vocabulary,
    events are translated; events without a translation are omitted.
    """
    chosen = vocabularies_named(vocabularies)
    return print_log(database, wanted=None, start=start, follow=follow, chosen=chosen, as_json=as_json)
