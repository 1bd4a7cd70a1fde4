"""The stdlib-only WebSocket stream that ssh runs through: against a real WebSocket server, and byte for byte."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from corral.client.config import Site
from corral.client.streams import CHUNK, Frames, StreamError, frame, open_stream


@contextmanager
def _server(
    handle: Callable[[ServerConnection], None],
    before: Callable[[ServerConnection, Request], Response | None] | None = None,
) -> Iterator[Site]:
    server: Server
    with serve(handle, "127.0.0.1", 0, process_request=before, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.socket.getsockname()[1]
            yield Site(f"http://127.0.0.1:{port}", token="secret")
        finally:
            server.shutdown()
            thread.join()


def _echo(connection: ServerConnection) -> None:
    for message in connection:
        if message == "eof":
            return
        connection.send(message)


def _through(site: Site, data: bytes) -> bytes:
    """Send `data` through a stream's pump and return what comes back."""
    stream = open_stream(site, "/x")
    (near_in, far_in), (near_out, far_out) = socket.socketpair(), socket.socketpair()
    received: list[bytes] = []

    def feed() -> None:
        near_in.sendall(data)
        near_in.shutdown(socket.SHUT_WR)

    def collect() -> None:
        while chunk := near_out.recv(65536):
            received.append(chunk)

    threads = [threading.Thread(target=feed), threading.Thread(target=collect)]
    for thread in threads:
        thread.start()
    stream.pump(far_in.fileno(), far_out.fileno())
    stream.close()
    far_out.close()
    for thread in threads:
        thread.join()
    for sock in (near_in, far_in, near_out):
        sock.close()
    return b"".join(received)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 3 * CHUNK + 17, 8 * 1024 * 1024])
def test_every_byte_comes_back_in_order(size: int) -> None:
    data = os.urandom(size)
    with _server(_echo) as site:
        assert _through(site, data) == data


@given(st.lists(st.binary(max_size=70_000), max_size=6), st.integers(1, 5_000))
def test_frames_are_cut_right_wherever_the_network_cuts_them(payloads: list[bytes], step: int) -> None:
    wire = b"".join(Frame(Opcode.BINARY, payload).serialize(mask=False) for payload in payloads)
    frames = Frames()
    seen = [payload for at in range(0, len(wire), step) for _, payload in frames.feed(wire[at : at + step])]
    assert seen == payloads


@given(st.binary(max_size=70_000))
def test_a_masked_frame_is_one_a_server_reads(payload: bytes) -> None:
    from websockets.protocol import OPEN
    from websockets.server import ServerProtocol

    server = ServerProtocol(state=OPEN, max_size=None)
    server.receive_data(frame(2, payload))
    events = server.events_received()
    assert [event.data for event in events if isinstance(event, Frame)] == [payload]


def test_a_stream_to_a_site_that_is_gone_is_found_out_by_tcp() -> None:
    with _server(_echo) as site:
        stream = open_stream(site, "/x")
        assert stream._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert stream._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
        stream.close()


def test_a_refusal_says_what_the_site_said() -> None:
    answer = {"code": "NO_SSH_KEY", "message": "No key of yours.", "details": {"n": 1}, "request_id": "r"}

    def refuse(_connection: ServerConnection, _request: Request) -> Response:
        body = json.dumps(answer).encode()
        return Response(409, "Conflict", Headers({"Content-Length": str(len(body))}), body)

    with _server(_echo, refuse) as site, pytest.raises(StreamError) as caught:
        open_stream(site, "/x")
    assert (caught.value.code, caught.value.message, caught.value.details) == (
        "NO_SSH_KEY",
        "No key of yours.",
        {"n": 1},
    )


def test_an_answer_that_is_not_http_is_an_error_not_a_crash() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve_garbage() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"\x00\xff garbage\r\n\r\n")

        thread = threading.Thread(target=serve_garbage)
        thread.start()
        with pytest.raises(StreamError, match="does not speak HTTP"):
            open_stream(Site(f"http://127.0.0.1:{listening.getsockname()[1]}", token="t"), "/x")
        thread.join()


def test_no_server_at_all_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(StreamError, match="Cannot reach"):
        open_stream(Site(f"http://127.0.0.1:{port}", token="t"), "/x")


def test_the_reason_of_a_close_is_kept() -> None:
    def close_at_once(connection: ServerConnection) -> None:
        connection.close(4403, "the key was detached")

    with _server(close_at_once) as site:
        stream = open_stream(site, "/x")
        with Path(os.devnull).open("r+b") as null:
            reader, writer = os.pipe()
            try:
                stream.pump(reader, null.fileno())
            finally:
                os.close(reader)
                os.close(writer)
        stream.close()
    assert stream.close_reason == "the key was detached"
