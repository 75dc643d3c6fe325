"""`tenure events`: the log of the whole database, from any position."""

from __future__ import annotations

import click

from tenure.cli.database import common_options
from tenure.cli.tail import START, tell_log
from tenure.cli.vocabulary import some_vocabularies
from tenure.vocabularies import vocabularies as vocabularies_named


@click.command()
@common_options
@click.option("--from", "start", metavar="POSITION", default=START, help="Go on after this position.  [default: start]")
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@some_vocabularies
def events(*, database: str, as_json: bool, start: str, follow: bool, vocabularies: tuple[str, ...]) -> int:
    """Print the log, each event once and in order, up to what is settled now.

    Every event of --json has its position: whoever was interrupted goes on with --from, and misses nothing, also not
    what commits late. With --vocabulary, events are told in those words, and those left out for which they have none.
    """
    chosen = vocabularies_named(vocabularies)
    return tell_log(database, wanted=None, start=start, for_ever=follow, chosen=chosen, as_json=as_json)
