"""`tenure outbox run`: delivers messages without running jobs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import click

from tenure.cli.app_loader import load_app
from tenure.cli.database import run
from tenure.cli.logging_setup import LEVELS, configure_logging
from tenure.cli.output import counted, print_line
from tenure.cli.stop_signals import StopSignals
from tenure.seams import SYSTEM

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.outbox.processor import OutboxProcessor

log = logging.getLogger("tenure.outbox")


@click.command("run")
@click.argument("app_name", metavar="MODULE:APP")
@click.option("--once", is_flag=True, help="Deliver what is due now, and end.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Log nothing below this level.",
)
@click.option("--json", "as_json", is_flag=True, help="Log a JSON object per line.")
def run_processor(*, app_name: str, once: bool, log_level: str, as_json: bool) -> int:
    """Deliver messages to the endpoints of an app, and to webhooks, until it is stopped.

    The first SIGTERM or SIGINT stops it: deliveries under way end. A later one aborts: what was not recorded is
    delivered again.
    """
    from tenure.cli.worker import reduce_garbage_collection

    configure_logging(log_level, as_json=as_json)
    app = load_app(app_name)
    reduce_garbage_collection()
    return run(_deliver(app, once=once))


async def _deliver(app: App, *, once: bool) -> int:
    from tenure.cli.worker import ABORT_SECONDS_MAX, STOP_MARGIN_SECONDS
    from tenure.outbox.processor_options import ProcessorOptions

    options = app.outbox_options or ProcessorOptions()
    signals = StopSignals(
        stop_seconds_max=options.delivery_seconds_max + STOP_MARGIN_SECONDS,
        abort_seconds_max=ABORT_SECONDS_MAX,
        seams=SYSTEM,
    )
    stopped = asyncio.Event()
    async with app:
        store = await app.store()
        role: Any = app.outbox_role()
        async with role(store, f"outbox-{app.seams.random.name()}") as processor:
            signals.listen(stop=lambda: _stop(processor, stopped), abort=_warn_of_abort)
            await (processor.drain() if once else stopped.wait())
        print_line(_summary(processor))
    signals.work_ended()
    return signals.exit_code


def _stop(processor: OutboxProcessor, stopped: asyncio.Event) -> None:
    processor.stop()
    stopped.set()


def _warn_of_abort() -> None:
    log.warning("aborting: deliveries under way are repeated when their leases have ended")


def _summary(processor: OutboxProcessor) -> str:
    counts = processor.counts
    dead = counted(counts["dead"], "dead letter")
    return f"{counts['delivered']} delivered, {counts['failed']} to be attempted again, {dead}"
