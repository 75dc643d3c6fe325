"""The command `tenure`, and the edge of its process: every error becomes one clear line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

import click

from tenure import __version__
from tenure.cli.demo import demo
from tenure.cli.dlq import dlq
from tenure.cli.doctor import doctor
from tenure.cli.jobs import jobs
from tenure.cli.migrate import migrate
from tenure.cli.output import Exit, complain, exit_code_for
from tenure.cli.stats import stats
from tenure.cli.verify import verify
from tenure.cli.worker import worker
from tenure.errors import TenureError

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


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tenure", message="%(prog)s %(version)s")
def tenure() -> None:
    """Durable jobs and workflows: run them, and look after their database.

    The database comes from --database, or from TENURE_DATABASE, or is ./tenure.db.
    """


tenure.add_command(demo)
tenure.add_command(worker)
tenure.add_command(jobs)
tenure.add_command(dlq)
tenure.add_command(stats)
tenure.add_command(migrate)
tenure.add_command(verify)
tenure.add_command(doctor)


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
    except TenureError as error:
        complain(f"tenure: {error}")
        return exit_code_for(error)
    except (click.Abort, KeyboardInterrupt):
        complain("tenure: interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except Exception:  # noqa: BLE001 - the process's edge: a bug must not pass for a finding.
        complain("tenure: this is a bug in tenure; please report it with what follows")
        traceback.print_exc()
        return Exit.BUG
    return answer if isinstance(answer, int) else Exit.OK


def _reader_gone() -> int:
    """Whoever read our output went away (`tenure verify | head`): end quietly, and let no flush fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.PROBLEMS
