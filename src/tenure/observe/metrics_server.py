"""An HTTP server for Prometheus scrapes, in its own threads: a busy event loop does not delay it."""

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
SCRAPES_MAX = 4
"""Further scrapes at the same time get 503: hanging scrapes must not exhaust the process."""
REQUEST_SECONDS_MOST = 10.0
POLL_SECONDS = 0.1

log = logging.getLogger("tenure.observe")


class ListenAddress(msgspec.Struct, frozen=True):
    """Host and port to listen on. Port 0 is any free port."""

    host: str
    port: int

    @staticmethod
    def parse(given: str) -> ListenAddress:
        """An address from `PORT`, `HOST:PORT` or `[IPv6]:PORT`. The default host is 127.0.0.1.

        >>> ListenAddress.parse("9100")
        ListenAddress(host='127.0.0.1', port=9100)
        >>> ListenAddress.parse("[::1]:9100")
        ListenAddress(host='::1', port=9100)
        """
        host, _, port = given.rpartition(":")
        if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
            raise InvalidInput("metrics", f"{given!r} is not an address; give PORT or HOST:PORT, such as 9100")
        bracketed = host.startswith("[") and host.endswith("]")
        if ":" in host and not bracketed:
            raise InvalidInput("metrics", f"{given!r} is not an address; write an IPv6 address as [::1]:9100")
        return ListenAddress((host[1:-1] if bracketed else host) or LOOPBACK, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MetricsServer:
    """Serves GET /metrics; `text` is called for each scrape. `address` has the actual port."""

    def __init__(self, wanted: ListenAddress, text: Callable[[], bytes], seams: Seams) -> None:
        """Listen at once; InvalidInput where the address cannot be used."""
        self._server = _Server(wanted, text)
        self.address = ListenAddress(wanted.host, self._server.server_address[1])
        self._thread = seams.spawn.thread(lambda: self._server.serve_forever(POLL_SECONDS), name="tenure-metrics")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Two processes sharing a port would each get some of the scrapes, without an error.
    allow_reuse_port = False
    server_address: tuple[str, int]

    def __init__(self, wanted: ListenAddress, text: Callable[[], bytes]) -> None:
        self.text = text
        self.scrape_slots = threading.BoundedSemaphore(SCRAPES_MAX)
        try:
            family, *_, resolved = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(resolved[0]), int(resolved[1])), _Handler)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise InvalidInput(
                "metrics", f"cannot be served at {wanted}: {reason}; choose another address, or port 0 for any free one"
            ) from None

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up this host's name in the DNS.
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()[:2]

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("scrape aborted: %s", sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "tenure", ""
    timeout = REQUEST_SECONDS_MOST

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"not found; metrics are at {PATH}\n".encode())
        elif not self.server.scrape_slots.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many scrapes at once\n")
        else:
            try:
                text = self.server.text()
            except Exception:
                log.exception("scrape failed")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the worker's log\n")
            else:
                self._answer(HTTPStatus.OK, text)
            finally:
                self.server.scrape_slots.release()

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", TEXT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        log.debug("metrics: " + format, *arguments)  # noqa: G003 - the format is a constant of the base class
