"""A small HTTP server for the scrapes of Prometheus, in threads of its own: a busy event loop does not hold it up."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tenure.errors import InvalidInput
from tenure.observe.prometheus import TEXT_TYPE
from tenure.seams import Seams

PATH = "/metrics"
LOOPBACK = "127.0.0.1"
AT_ONCE_MAX = 4
"""More scrapes at a time are turned away: one that hangs must not use up the process."""
REQUEST_SECONDS_MOST = 10.0
POLL_SECONDS = 0.1

log = logging.getLogger("tenure.observe")


class Address(msgspec.Struct, frozen=True):
    """Where to listen. Port 0 is any that is free."""

    host: str
    port: int

    @staticmethod
    def parsed(given: str) -> Address:
        """An address from `PORT`, `HOST:PORT` or `[IPv6]:PORT`. Without a host only this machine can come in.

        >>> Address.parsed("9100")
        Address(host='127.0.0.1', port=9100)
        >>> Address.parsed("[::1]:9100")
        Address(host='::1', port=9100)
        """
        host, _, port = given.rpartition(":")
        if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
            raise InvalidInput("metrics", f"{given!r} is no address; give PORT or HOST:PORT, such as 9100")
        bracketed = host.startswith("[") and host.endswith("]")
        if ":" in host and not bracketed:
            raise InvalidInput("metrics", f"{given!r} is no address; write an IPv6 address as [::1]:9100")
        return Address((host[1:-1] if bracketed else host) or LOOPBACK, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MetricsServer:
    """Answers GET /metrics with a text that is made anew each time. `address` has the port that it was given."""

    def __init__(self, wanted: Address, text: Callable[[], bytes], seams: Seams) -> None:
        """Listen, or refuse with what keeps us from it."""
        self._server = _Server(wanted, text)
        self.address = Address(wanted.host, self._server.server_address[1])
        self._thread = seams.spawn.thread(lambda: self._server.serve_forever(POLL_SECONDS), name="tenure-metrics")

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Two processes that share a port would each see some of the scrapes, and nobody would say so.
    allow_reuse_port = False
    server_address: tuple[str, int]

    def __init__(self, wanted: Address, text: Callable[[], bytes]) -> None:
        self.text = text
        self.places = threading.BoundedSemaphore(AT_ONCE_MAX)
        try:
            family, *_, resolved = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(resolved[0]), int(resolved[1])), _Handler)
        except OSError as problem:
            said = problem.strerror or str(problem)
            raise InvalidInput(
                "metrics", f"cannot be served at {wanted}: {said}; choose another address, or port 0 for any free one"
            ) from None

    def server_bind(self) -> None:
        # Not HTTPServer's, which would look up our own name in the DNS.
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()[:2]

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape was not finished: %s", sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "tenure", ""
    timeout = REQUEST_SECONDS_MOST

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"nothing here but {PATH}\n".encode())
        elif not self.server.places.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many scrapes at once\n")
        else:
            try:
                text = self.server.text()
            except Exception:
                log.exception("the metrics could not be shown")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the worker's log\n")
            else:
                self._answer(HTTPStatus.OK, text)
            finally:
                self.server.places.release()

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", TEXT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        log.debug("metrics: " + format, *arguments)  # noqa: G003 - the format is a constant of the base class
