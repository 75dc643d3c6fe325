"""A receiver of tenure's webhooks that applies each message once, with Starlette and SQLite.

    pip install 'tenure[server]'
    export WEBHOOK_SECRETS="whsec_…"      # the sender's; two, separated by a space, while one replaces the other
    python examples/receive_webhooks.py 8080

The effect and the receipt of a message are one transaction. If the response is lost, or this program is killed at any
point, the sender sends the message again with the same id: it finds its receipt, or applies the effect for the first
time.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tenure.errors import SignatureRefused
from tenure.inbox import CREATE_TABLE, ReceivedMessage, record_receipt, verify

DATABASE = os.environ.get("RECEIVER_DATABASE", "receiver.db")
BODY_BYTES_MAX = 1024 * 1024


async def receive(request: Request) -> Response:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return JSONResponse({"error": "too large"}, status_code=413)
    try:
        message = verify(request.headers, body, os.environ["WEBHOOK_SECRETS"].split())
    except SignatureRefused as refused:
        return JSONResponse({"error": str(refused)}, status_code=401)
    first = apply_once(message)  # A program with more to do per message runs this in a thread.
    return JSONResponse({"first": first})


def apply_once(message: ReceivedMessage) -> bool:
    """Apply the message unless it was applied before."""
    with closing(sqlite3.connect(DATABASE)) as connection, connection:
        first = record_receipt(connection, message.id)
        if first:
            add = "update balances set cents = cents + ? where account = ?"
            connection.execute(add, (message.data["cents"], message.data["account"]))
        return first


def create_tables() -> None:
    with closing(sqlite3.connect(DATABASE)) as connection, connection:
        connection.execute(CREATE_TABLE)
        connection.execute("create table if not exists balances (account text primary key, cents integer)")
        connection.execute("insert or ignore into balances values ('ada', 0)")


app = Starlette(routes=[Route("/webhooks", receive, methods=["POST"])])


if __name__ == "__main__":
    create_tables()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
