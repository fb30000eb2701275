"""Clients of `serve` that send nothing, half a request, or too many of them: who asks properly gets an answer."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack

import pytest

from dbt_reverse_etl.serve import connections
from tests.support.serve.world import World
from tests.support.servers.cloud_api import event, fetch, post

HALF = b"POST /webhook HTTP/1.1\r\nHost: x\r\n"


def opened(url: str, host: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of loopback, each of which is a client of its own."""
    port = int(url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(host, 0))


def is_closed(connection: socket.socket, seconds: float = 0.0) -> bool:
    connection.settimeout(seconds or 0.001)
    try:
        return connection.recv(1) == b""
    except (BlockingIOError, TimeoutError):
        return False
    except ConnectionError:
        return True


@pytest.mark.guarantee("dbt Cloud")
def test_idle_connections_of_any_number_of_clients_keep_neither_health_nor_webhooks_out(world: World) -> None:
    with world.serving() as url, ExitStack() as left:
        for client in range(2, 10):
            for number in range(70):
                idle = left.enter_context(opened(url, f"127.0.0.{client}"))
                idle.sendall(HALF if number % 2 else b"")
        for _ in range(3):
            began = time.monotonic()
            assert fetch(f"{url}/healthz")[0] == 200
            assert time.monotonic() - began < 5, "and not the 20 s of an idle one"
        world.api.add_run(1)
        assert post(url, event(1))[0] == 200
        world.wait(1)


@pytest.mark.guarantee("dbt Cloud")
def test_a_client_that_holds_many_connections_holds_them_from_itself_alone(world: World) -> None:
    with world.serving() as url, ExitStack() as left:
        other = left.enter_context(opened(url, "127.0.0.2"))
        other.sendall(HALF)
        many = [left.enter_context(opened(url)) for _ in range(connections.OF_A_CLIENT + 5)]
        assert fetch(f"{url}/healthz")[0] == 200
        gone = [is_closed(one) for one in many]
        assert gone == [True] * 6 + [False] * (len(many) - 6), "the oldest made way, one for the question about health"
        other.sendall(b"\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 401"), "the other client has lost nothing"


@pytest.mark.guarantee("dbt Cloud")
def test_half_a_request_and_a_connection_without_one_end_in_time(world: World) -> None:
    world.env["LIFE"] = "0.5"
    with world.serving() as url:
        for text in (b"", HALF, HALF + b"Content-Length: 10\r\n\r\n{"):
            with opened(url) as idle:
                idle.sendall(text)
                began = time.monotonic()
                while not is_closed(idle, 5):
                    assert time.monotonic() - began < 4
        with opened(url) as slow:
            for sign in HALF.decode():
                try:
                    slow.sendall(sign.encode())
                except ConnectionError:
                    break
                time.sleep(0.05)
            else:
                pytest.fail("a byte now and then keeps the connection")


def test_a_connection_carries_one_request_and_what_is_none_fills_no_log(world: World) -> None:
    with world.serving() as url, opened(url) as one, opened(url) as other:
        other.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 400")
        before = world.logs()
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        answer = b"".join(iter(lambda: one.recv(4096), b""))
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer.lower()
        assert world.logs() == before
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+ (info|warn|error) ", line) for line in world.logs().splitlines())
