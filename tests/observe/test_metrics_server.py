"""The small server for scrapes, over real sockets of the loopback address."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tenure.errors import InvalidInput
from tenure.observe.metrics_server import SCRAPES_MAX, ListenAddress, MetricsServer
from tenure.seams import SYSTEM


@contextmanager
def serving(text: Callable[[], bytes], address: str = "0") -> Iterator[ListenAddress]:
    server = MetricsServer(ListenAddress.parse(address), text, SYSTEM)
    try:
        yield server.address
    finally:
        server.close()


def ask(address: ListenAddress, path: str = "/metrics", *, method: str = "GET") -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers["Content-Type"]
    finally:
        connection.close()


def test_a_scrape_returns_current_values() -> None:
    texts = iter([b"up 0\n", b"up 1\n"])
    with serving(lambda: next(texts)) as address:
        assert address.host == "127.0.0.1"
        assert ask(address) == (200, b"up 0\n", "text/plain; version=0.0.4; charset=utf-8")
        assert ask(address, "/metrics?name=up")[:2] == (200, b"up 1\n")


@pytest.mark.parametrize(("path", "method", "status"), [("/", "GET", 404), ("/metrics", "POST", 501)])
def test_nothing_else_is_there(path: str, method: str, status: int) -> None:
    with serving(lambda: b"") as address:
        assert ask(address, path, method=method)[0] == status


def test_a_port_that_is_taken_is_refused_with_what_to_do() -> None:
    with serving(lambda: b"") as address, pytest.raises(InvalidInput) as refusal:
        MetricsServer(address, lambda: b"", SYSTEM)
    assert "Address already in use; choose another address, or port 0" in str(refusal.value)
    assert str(address) in str(refusal.value)


def test_the_port_is_free_again_once_the_server_is_closed() -> None:
    with serving(lambda: b"") as address:
        pass
    with serving(lambda: b"again", str(address)) as same:
        assert ask(same)[1] == b"again"


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be served at"):
        MetricsServer(ListenAddress("host.invalid", 0), lambda: b"", SYSTEM)


@pytest.mark.parametrize("given", ["", "metrics", "localhost", "99999", "-1", "::1:9100", "9100:", "٣"])
def test_an_address_that_makes_no_sense_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="is not an address"):
        ListenAddress.parse(given)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("9100", ListenAddress("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ListenAddress("0.0.0.0", 9100)),
        ("[::1]:0", ListenAddress("::1", 0)),
        (":9100", ListenAddress("127.0.0.1", 9100)),
    ],
)
def test_without_a_host_only_this_machine_can_come_in(given: str, address: ListenAddress) -> None:
    assert ListenAddress.parse(given) == address


def test_scrapes_beyond_the_limit_are_refused() -> None:
    here, go_on = threading.Semaphore(0), threading.Event()

    def slow() -> bytes:
        here.release()
        assert go_on.wait(20)
        return b"done"

    with serving(slow) as address:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(ask(address)[0])) for _ in range(SCRAPES_MAX)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert here.acquire(timeout=20)
        assert ask(address)[0] == 503
        go_on.set()
        for thread in threads:
            thread.join(20)
        assert answers == [200] * SCRAPES_MAX
        assert ask(address)[0] == 200


def test_an_error_in_the_text_is_an_answer_and_not_the_end_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    texts: Iterator[bytes] = iter([])

    with serving(lambda: next(texts)) as address:
        assert ask(address)[0] == 500
        assert ask(address)[0] == 500
    assert "scrape failed" in caplog.text


def test_a_silent_connection_blocks_no_other() -> None:
    with serving(lambda: b"ok") as address, socket.create_connection((address.host, address.port), timeout=10):
        assert ask(address)[0] == 200
