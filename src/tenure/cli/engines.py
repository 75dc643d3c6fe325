"""`tenure engines`: serve remote engines, and make their access tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenure.cli.app_loader import load_app
from tenure.cli.database import connected, run
from tenure.cli.groups import CommandGroup
from tenure.cli.logging_setup import LEVELS, configure_logging
from tenure.cli.metrics import serve_metrics
from tenure.cli.output import Exit, print_json, print_line
from tenure.seams import SYSTEM

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.engines.tokens import EngineTokens

TOKENS_VARIABLE = "TENURE_ENGINE_TOKENS"


@click.group(cls=CommandGroup)
def engines() -> None:
    """Serve remote engines, and make their access tokens."""


@engines.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def token(*, name: str, as_json: bool) -> int:
    """Make an access token for an engine, and print it with its line for the token file.

    The token is printed once. The line has its digest: append it to the token file of the gateways. To revoke the
    token, remove the line and restart the gateways.
    """
    from tenure.engines.tokens import new_token

    text, made = new_token(name, SYSTEM)
    if as_json:
        print_json({"name": made.name, "token": text, "line": made.line})
    else:
        print_line(f"token (for the engine):     {text}")
        print_line(f"line (for the token file):  {made.line}")
    return Exit.OK


@engines.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0 is any free port.")
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The token file.  [default: the lines in {TOKENS_VARIABLE}]",
)
@click.option("--queues", default="*", show_default=True, metavar="A,B", help="Queues; * is all that the app declares.")
@click.option("--heartbeat-seconds", type=float, default=5.0, show_default=True, help="Interval of engine heartbeats.")
@click.option("--silence-seconds", type=float, default=15.0, show_default=True, help="Silence that ends a connection.")
@click.option("--grace-seconds", type=float, default=30.0, show_default=True, help="Time for engines at a stop.")
@click.option(
    "--metrics", metavar="[HOST:]PORT", help="Serve Prometheus metrics at /metrics.  [default host: 127.0.0.1]"
)
@click.option("--database", metavar="URL", help="Use this database instead of the app's.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def serve(
    *,
    target: str,
    host: str,
    port: int,
    tokens: Path | None,
    queues: str,
    heartbeat_seconds: float,
    silence_seconds: float,
    grace_seconds: float,
    metrics: str | None,
    database: str | None,
    log_level: str,
    log_format: str,
) -> int:
    """Serve engines at /engine: over WebSocket, and over HTTP below it.

    MODULE:APP declares the remote jobs. Any number of gateways may serve one database. SIGTERM and SIGINT stop the
    gateway: it dispatches nothing more, and engines have the grace time to finish. Needs `tenure[server]`.
    """
    from tenure.engines.tokens import EngineTokens, parse_tokens

    configure_logging(log_level, as_json=log_format == "json")
    lines = tokens.read_text(encoding="utf-8") if tokens is not None else os.environ.get(TOKENS_VARIABLE, "")
    accepted = EngineTokens(parse_tokens(lines.splitlines()))
    app = load_app(target, database=database)
    settings = {
        "heartbeat_seconds": heartbeat_seconds,
        "silence_seconds": silence_seconds,
        "grace_seconds": grace_seconds,
    }
    names = tuple(name.strip() for name in queues.split(","))
    run(_serve(app, accepted, host=host, port=port, queues=names, metrics=metrics, **settings))
    return Exit.OK


async def _serve(
    app: App,
    tokens: EngineTokens,
    *,
    host: str,
    port: int,
    queues: tuple[str, ...],
    metrics: str | None,
    **settings: float,
) -> None:
    from tenure.cli.worker import process_gauges
    from tenure.engines.server import serve_gateway

    async with connected(app.database):
        pass  # Refuses a database that cannot be used before the gateway listens.
    gateway = app.gateway(queues=queues, **settings)
    async with serve_metrics(
        metrics,
        sources=(gateway.metrics, app.metrics),
        process_gauges=lambda: process_gauges(processes=1, running=gateway.unfinished),
        open_store=app.open_store,
    ):
        await serve_gateway(gateway, tokens, host=host, port=port)
