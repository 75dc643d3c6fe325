"""The command `tenure`: loads subcommands, and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from keyword import iskeyword
from typing import NoReturn

import click

from tenure import __version__
from tenure.errors import TenureError

COMMANDS = {
    "bench": "Measure what this machine and a database give.",
    "demo": "Run a few hundred jobs on SQLite, and kill a worker meanwhile.",
    "dlq": "List, show, redrive and discard dead letters.",
    "doctor": "Check versions, clock, migrations, schedules and the database.",
    "engines": "Serve remote engines, and make their access tokens.",
    "events": "Print the log: each event once, in order.",
    "export": "Write a consistent snapshot of the whole database as JSON Lines.",
    "golden": "Record runs as golden files, and check today's code against them.",
    "import": "Import an export into an empty database: all of it, or nothing.",
    "jobs": "List, show, tail, enqueue, cancel and retry jobs.",
    "migrate": "Apply the pending migrations of a database.",
    "outbox": "List, deliver and redrive messages of the outbox; add webhooks.",
    "prune": "Remove finished jobs and old details.",
    "queues": "Pause queues, and set their limits.",
    "replay": "Show a job at an earlier time or revision, folded from its events.",
    "runs": "List and show runs of workflows, send signals, and unpin runs.",
    "schedules": "List, change, pause and trigger schedules.",
    "stats": "Count jobs; list live workers, and unserved queues and kinds.",
    "verify": "Replay every job's events and compare the result with its record.",
    "worker": "Run the jobs of an app until it is stopped.",
}
"""Each command is `tenure.cli.NAME:NAME` (`NAME_` for a Python keyword), and is imported when it is used. Summaries are
repeated here, so that `tenure --help` imports no command; a test compares both."""

EXIT_CODES = """\b
Exit codes:
  0    success
  1    problems were found, or a change was refused
  2    wrong usage
  3    the database cannot be reached or used
  70   a bug in tenure; the traceback is on standard error
  130  interrupted
  143  terminated by a second SIGTERM
"""


class Commands(click.Group):
    """Imports a subcommand when it is used, so that help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f"tenure.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click suggests only commands that are imported.
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = [repr(name) for name in get_close_matches(args[0], COMMANDS)]
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {' or '.join(close)}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].removesuffix(".")) for name in self.list_commands(ctx)])


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tenure", message="%(prog)s %(version)s")
def tenure() -> None:
    """Run durable jobs, and operate their database.

    The database is --database, or that of --app, or TENURE_DATABASE, or ./tenure.db.
    """


def main() -> NoReturn:
    """Run the command line and exit. A character that the encoding of a stream lacks is escaped, and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run the command with these arguments; its exit code."""
    try:
        result = tenure.main(arguments, prog_name="tenure", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        return _close_output()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a bug must not look like a finding.
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: Exception | KeyboardInterrupt) -> int:
    """Print the error to standard error; its exit code."""
    from tenure.cli.app_loader import AppImportFailed
    from tenure.cli.output import Exit, exit_code_for, print_error

    match error:
        case AppImportFailed():
            click.echo(error.traceback_text, err=True, nl=False)
            print_error(str(error))
            return Exit.PROBLEMS
        case TenureError():
            print_error(str(error))
            return exit_code_for(error)
        case click.Abort() | KeyboardInterrupt():
            print_error("interrupted")
            return Exit.INTERRUPTED
    print_error("this is a bug in tenure; please report it with this traceback:")
    traceback.print_exception(error)
    return Exit.BUG


def _close_output() -> int:
    """The reader of standard output has closed it (`tenure verify | head`): no flush at exit may fail."""
    from tenure.cli.output import Exit

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.PROBLEMS
