"""Clients that send no request, or do not read the response, do not block the others."""

from __future__ import annotations

import asyncio
import gzip
import random
import resource
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from asgi_caller import make_scope
from browser import viewer
from starlette.responses import PlainTextResponse

from sacmil.viewer.connections import BoundedApp, ConnectionLimits, Connections, find_limits
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.responses import is_built
from sacmil.viewer.server import make_http_server

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
LAST_REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
LONG_S = 600.0
CLIENT = "127.0.0.1"
Client = Callable[[int], Awaitable[None]]


def serve(app: Any, limits: ConnectionLimits, client: Client) -> None:
    """Run a client against a real server, given its port."""

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = make_http_server(app, limits)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(client(listener.getsockname()[1]), 30)
        finally:
            while writers:
                writers.pop().close()
            server.should_exit = server.force_exit = True
            await running

    asyncio.run(main())


writers: list[asyncio.StreamWriter] = []  # closed by serve


async def connect(port: int, first: bytes = b"") -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writers.append(writer)
    writer.write(first)
    await writer.drain()
    return reader


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("first", [b"", b"GET / HT", REQUEST[:-2]])
def test_a_connection_without_a_whole_request_is_ended(first: bytes) -> None:
    async def client(port: int) -> None:
        reader = await connect(port, first)
        assert await read_to_end(reader) == b""

    serve(PlainTextResponse("page"), ConnectionLimits(8, 8, request_timeout_s=0.2), client)


def test_sending_a_byte_at_a_time_does_not_extend_the_deadline() -> None:
    async def client(port: int) -> None:
        reader = await connect(port)
        while not (reader.at_eof() or reader.exception()):
            writers[-1].write(b"G")
            await asyncio.sleep(0.02)
        assert await read_to_end(reader) == b""

    serve(PlainTextResponse("page"), ConnectionLimits(8, 8, request_timeout_s=0.2), client)


def test_an_idle_connection_is_ended_after_its_last_response() -> None:
    async def client(port: int) -> None:
        reader = await connect(port, REQUEST)
        assert b"page" in await reader.readuntil(b"page")
        writers[-1].write(b"GET")  # half of the next
        assert await read_to_end(reader) == b""

    serve(PlainTextResponse("page"), ConnectionLimits(8, 8, request_timeout_s=0.2), client)


@pytest.mark.parametrize(
    "limits", [ConnectionLimits(8, 100, LONG_S), ConnectionLimits(100, 8, LONG_S)]
)
def test_half_open_connections_are_dropped_for_a_new_one(limits: ConnectionLimits) -> None:
    async def client(port: int) -> None:
        half_open = [await connect(port, b"GET / HTTP/1.1\r\n") for _ in range(40)]
        reader = await connect(port, REQUEST)
        assert b"page" in await reader.readuntil(b"page")
        ended = [await read_to_end(reader) for reader in half_open[:33]]
        assert ended == [b""] * 33  # the oldest
        assert not any(reader.at_eof() for reader in half_open[33:])

    serve(PlainTextResponse("page"), limits, client)


def test_a_client_that_does_not_read_is_ended() -> None:
    ended = asyncio.Event()
    size = 64 * 2**20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await PlainTextResponse(b"x" * size)(scope, receive, send)
            ended.set()

    async def client(port: int) -> None:
        reader = await connect(port, REQUEST)
        await ended.wait()
        assert 0 < len(await read_to_end(reader)) < size

    serve(app, ConnectionLimits(8, 8, read_timeout_s=0.3), client)


def test_a_large_response_arrives_whole() -> None:
    body = bytes(range(256)) * 2**14

    async def client(port: int) -> None:
        reader = await connect(port, LAST_REQUEST)
        assert (await reader.read()).endswith(b"\r\n\r\n" + body)

    serve(PlainTextResponse(body), ConnectionLimits(8, 8), client)


def test_a_response_that_is_sent_lets_other_clients_in_between() -> None:
    turns: list[str] = []

    async def take(message: Any) -> None:
        turns.append("chunk")

    async def others() -> None:
        while "done" not in turns:
            turns.append("others")
            await asyncio.sleep(0)

    async def main() -> None:
        connections = Connections(ConnectionLimits(8, 8))
        add_all(connections, ("a", 1))
        waiting = asyncio.create_task(others())
        app = BoundedApp(PlainTextResponse(b"x" * 2**20), connections)
        await app({"type": "http", "client": ("a", 1)}, None, take)  # type: ignore[arg-type]
        turns.append("done")
        await waiting

    asyncio.run(main())
    assert turns.count("chunk") == 17  # the head, and sixteen times 64 KiB
    assert turns.count("others") >= 16


def test_nothing_more_is_sent_once_a_client_was_dropped() -> None:
    sent: list[Any] = []

    async def main() -> None:
        connections = Connections(ConnectionLimits(1, 1))
        add_all(connections, ("a", 1))

        async def take(message: Any) -> None:
            sent.append(message)
            add_all(connections, ("b", 1))  # to which the first gives way

        app = BoundedApp(PlainTextResponse(b"x" * 2**20), connections)
        await app({"type": "http", "client": ("a", 1)}, None, take)  # type: ignore[arg-type]

    asyncio.run(main())
    assert len(sent) == 1


class FakeTransport:
    """Records whether it was ended."""

    is_ended = False

    def abort(self) -> None:
        self.is_ended = True

    def get_write_buffer_size(self) -> int:
        return 0


def add_all(connections: Connections, *addresses: tuple[str, int]) -> list[Any]:
    transports: list[Any] = [FakeTransport() for _ in addresses]
    for address, transport in zip(addresses, transports, strict=True):
        connections.add(address, transport)
    return transports


def in_loop(check: Callable[[], None]) -> None:
    async def main() -> None:
        check()

    asyncio.run(main())


def test_a_busy_connection_is_never_dropped() -> None:
    def check() -> None:
        connections = Connections(ConnectionLimits(2, 2))
        (working,) = add_all(connections, ("a", 1))
        connections.mark_busy(("a", 1))
        others = add_all(connections, *[("a", port) for port in range(2, 9)])
        assert not working.is_ended
        assert [each.is_ended for each in others] == [True] * 6 + [False]

    in_loop(check)


def test_if_all_connections_are_busy_a_new_one_is_dropped() -> None:
    def check() -> None:
        connections = Connections(ConnectionLimits(2, 2))
        old = add_all(connections, ("a", 1), ("b", 1))
        connections.mark_busy(("a", 1))
        connections.mark_busy(("b", 1))
        (newcomer,) = add_all(connections, ("c", 1))
        assert newcomer.is_ended
        assert not any(each.is_ended for each in old)

    in_loop(check)


def test_one_client_takes_no_connection_of_another() -> None:
    def check() -> None:
        connections = Connections(ConnectionLimits(10, 4))
        (honest,) = add_all(connections, ("honest", 1))
        add_all(connections, *[("greedy", port) for port in range(100)])
        assert not honest.is_ended
        assert len(connections) == 5

    in_loop(check)


def test_clients_that_take_much_and_read_nothing_are_dropped_at_once() -> None:
    def check() -> None:
        connections = Connections(ConnectionLimits(10, 10, max_unsent_bytes=100))
        addresses = [("a", port) for port in range(5)]
        transports = add_all(connections, *addresses)
        for address in addresses:
            connections.start_deadline(address, LONG_S)
            connections.hold_body(address, bytes(40))
        assert [each.is_ended for each in transports] == [True] * 3 + [False] * 2
        assert connections.held_bytes == 80

    in_loop(check)


async def hang(_: Any = None) -> None:
    """Neither read nor disconnect."""
    await asyncio.Event().wait()


def count_connections_of_clients_that_do_not_read(
    app: Any, limits: ConnectionLimits, clients: int
) -> int:
    """How many connections are left once each client has got a part of its response."""
    started: list[Any] = []

    async def take(message: Any) -> None:
        started.append(message)
        await hang()

    async def main() -> int:
        connections = Connections(limits)
        bounded, tasks = BoundedApp(app, connections), []
        for port in range(clients):
            add_all(connections, (CLIENT, port))
            scope = make_scope("/api/slides/0/truth") | {"client": (CLIENT, port)}
            tasks.append(asyncio.create_task(bounded(scope, hang, take)))  # type: ignore[arg-type]
            while len(started) <= port:
                await asyncio.sleep(0)
        left = len(connections)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert connections.held_bytes == 0
        return left

    return asyncio.run(main())


def test_a_body_that_many_clients_share_is_counted_once() -> None:
    class Body:
        async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.body", "body": body})

    body = bytes(100_000)
    limits = ConnectionLimits(100, 100, max_unsent_bytes=150_000)
    assert count_connections_of_clients_that_do_not_read(Body(), limits, 10) == 10


def test_bodies_that_are_unpacked_for_clients_that_do_not_read_are_bounded(
    made, make_app, monkeypatch
) -> None:
    def make_outline(*_: Any) -> bytes:
        return gzip.compress(random.randbytes(100_000))

    monkeypatch.setattr(ResultsApi, "get_truth", make_outline)  # as if each were of another slide
    limits = ConnectionLimits(100, 100, max_unsent_bytes=250_000)
    assert count_connections_of_clients_that_do_not_read(make_app(made), limits, 10) == 2


def test_a_request_that_the_ending_server_cancels_raises_nothing() -> None:
    async def main() -> None:
        async def app(*_: Any) -> None:
            await hang()

        scope = make_scope("/") | {"client": (CLIENT, 1)}
        bounded = BoundedApp(app, Connections(ConnectionLimits(8, 8)))
        request = asyncio.create_task(bounded(scope, hang, hang))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait({request})
        assert not request.cancelled()
        assert request.exception() is None

    asyncio.run(main())


def test_a_round_of_the_event_loop_sends_one_chunk_of_all_large_responses() -> None:
    rounds = [0]

    async def take(_: Any) -> None:
        rounds[-1] += 1

    async def main() -> None:
        connections = Connections(ConnectionLimits(100, 100))
        app = BoundedApp(send_body, connections)
        add_all(connections, *[(CLIENT, port) for port in range(50)])
        scopes = [make_scope("/") | {"client": (CLIENT, port)} for port in range(50)]
        sending = asyncio.gather(*[app(scope, hang, take) for scope in scopes])  # type: ignore[arg-type]
        while not sending.done():
            rounds.append(0)
            await asyncio.sleep(0)

    async def send_body(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": bytes(2**18)})

    asyncio.run(main())
    assert sum(rounds) == 50 * 4
    assert max(rounds) == 1


@pytest.mark.parametrize(("soft", "hard"), [(256, 1024), (1024, 2**20), (1024, -1), (-1, -1)])
def test_limits_stay_below_half_of_the_descriptors(monkeypatch, soft: int, hard: int) -> None:
    found = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    limits = find_limits()
    assert 0 < limits.max_per_client < limits.max_connections
    assert found[-1][0] == -1 or limits.max_connections < found[-1][0] / 2


def test_limits_are_small_where_descriptors_cannot_be_raised(monkeypatch) -> None:
    def reject(*_: Any) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", reject)
    assert find_limits().max_connections < 128


FLOOD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(4000):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    held[-1].send(b"GET / HTTP/1.1\\r\\n")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def half_open(port: int) -> Iterator[None]:
    """4,000 connections with half a request, from another process."""
    command = [sys.executable, "-c", FLOOD, str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "held\n"
        yield
        flood.kill()


@pytest.mark.slow
@pytest.mark.skipif(not is_built(), reason="the page is not built; type: make viewer")
@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4500, reason="needs 4,500 descriptors"
)
def test_the_viewer_serves_others_under_four_thousand_half_open_connections(made: Path) -> None:
    with viewer(made) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with half_open(port):
            for _ in range(20):
                with urlopen(f"{address}api/results", timeout=60) as response:
                    assert response.status == 200
