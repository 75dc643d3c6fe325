"""The command `tenure`, and the edge of its process: every error becomes one clear line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from keyword import iskeyword
from typing import NoReturn

import click

from tenure import __version__
from tenure.errors import TenureError

COMMANDS = {
    "bench": "Measure what this machine and a database give.",
    "demo": "Run some hundred jobs on one SQLite file and kill a worker in the middle of its work.",
    "dlq": "Look after dead letters: jobs that were set aside for a person to look at.",
    "doctor": "Look for trouble: versions, clock skew, missing migrations, and what the store itself finds.",
    "events": "Print the log, each event once and in order, up to what is settled now.",
    "export": "Write the whole database as JSON Lines, as it is at one moment, for `tenure import` into an empty one.",
    "import": "Write what `tenure export` wrote into an empty database: all of it, or nothing.",
    "jobs": "Look at jobs, cancel them, and follow what happens to them.",
    "migrate": "Apply the migrations that the database lacks.",
    "queues": "Pause queues, and limit how much of them goes at once or in a time.",
    "replay": "Show a job as it was at a moment or a revision, by the events that there were until then.",
    "schedules": "Look at schedules, change and pause them, and see when they are due.",
    "stats": "Count jobs per queue, kind and status; name the workers, and the kinds that no worker runs.",
    "verify": "Replay every job's events and compare with its record.",
    "worker": "Run the jobs of an app until told to stop.",
}
"""Each command is `tenure.cli.NAME:NAME`, and is imported when it is called for; a name that is a word of Python's is
written `NAME_` there. What it says of itself is repeated here, so that a list of all of them needs none of them; a test
compares the two."""

EXIT_CODES = """\b
Exit codes:
  0    all is well
  1    problems were found
  2    the command was called wrongly
  3    the database cannot be reached, or is not fit to be used
  70   a bug in tenure; the traceback is on standard error
  130  interrupted
  143  told to end twice, and ended at once
"""


class Commands(click.Group):
    """The commands, each imported when it is first asked for: help and a mistyped name stay fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f"tenure.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        room = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _shortened(COMMANDS[name], room)) for name in self.list_commands(ctx)])


def _shortened(sentence: str, room: int) -> str:
    """The sentence, cut between words as click does where it does not fit."""
    return click.Command(name=None, help=sentence).get_short_help_str(room)


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tenure", message="%(prog)s %(version)s")
def tenure() -> None:
    """Durable jobs and workflows: run them, and look after their database.

    The database comes from --database, or from TENURE_DATABASE, or is ./tenure.db.
    """


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        answer = tenure.main(arguments, prog_name="tenure", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as mistake:
        mistake.show()
        return mistake.exit_code
    except BrokenPipeError:
        return _reader_gone()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the process's edge: a bug must not pass for a finding.
        return _explained(error)
    return answer if isinstance(answer, int) else 0


def _explained(error: Exception | KeyboardInterrupt) -> int:
    """Say on standard error what ended the command; the exit code for it."""
    from tenure.cli.output import Exit, complain, exit_code_for

    match error:
        case TenureError():
            complain(f"tenure: {error}")
            return exit_code_for(error)
        case click.Abort() | KeyboardInterrupt():
            complain("tenure: interrupted")
            return Exit.INTERRUPTED
    complain("tenure: this is a bug in tenure; please report it with what follows")
    traceback.print_exception(error)
    return Exit.BUG


def _reader_gone() -> int:
    """Whoever read our output went away (`tenure verify | head`): end quietly, and let no flush fail at exit."""
    from tenure.cli.output import Exit

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.PROBLEMS
