"""`corral forward NAME PORT`: a local port that leads to a port inside a compute cluster, without ssh or keys."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Sequence

import click

from corral.cli.output import safe, say
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.cli.ssh import cluster_of
from corral.client import ssh as openssh
from corral.client.config import Site
from corral.client.errors import CorralError
from corral.client.streams import StreamError, open_stream


@click.command(cls=Command)
@click.argument("name")
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...")
@click.option("--address", default="127.0.0.1", show_default=True, help="Local address to listen on.")
@at("org", "workspace")
def forward(place: Place, name: str, ports: Sequence[str], address: str) -> None:
    """Reach ports inside the compute cluster NAME from this computer: corral forward NAME 8888"""
    cluster = cluster_of(place, name)
    pairs = [_parse(port) for port in ports]
    place.workspace.compute_cluster(name).connection()  # says at once when there is no such cluster
    listening = [(_listen(address, local), remote) for local, remote in pairs]
    try:
        for sock, remote in listening:
            host, port = sock.getsockname()[:2]
            say(f"{host}:{port} -> {name}:{remote}  (Ctrl-C ends it)")
        threads = [
            threading.Thread(target=_serve, args=(sock, place.site, cluster, remote), daemon=True)
            for sock, remote in listening
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for sock, _ in listening:
            sock.close()


def _parse(text: str) -> tuple[int, int]:
    local, _, remote = text.rpartition(":")
    try:
        pair = (int(local or remote), int(remote))
    except ValueError:
        pair = (-1, -1)
    if not (0 <= pair[0] <= 65535 and 1 <= pair[1] <= 65535):
        raise click.BadParameter(f"{text!r}: use PORT or LOCAL:PORT, from 1 to 65535 (LOCAL 0: any free one).")
    return pair


def _listen(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port))
    except OSError as error:
        raise CorralError(
            "PORT_IN_USE", f"Cannot listen on {address}:{port}: {error.strerror}. Choose another: OTHER:{port}."
        ) from error


def _serve(listening: socket.socket, site: Site, cluster: openssh.Cluster, port: int) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(connection, site, cluster, port), daemon=True).start()


def _join(connection: socket.socket, site: Site, cluster: openssh.Cluster, port: int) -> None:
    """Serve one local connection by one stream."""
    with connection:
        try:
            stream = open_stream(site, cluster.stream_path, target="port", port=port)
        except StreamError as error:
            print(f"corral: {safe(error.message)}", file=sys.stderr)
            return
        try:
            stream.pump(connection.fileno(), connection.fileno())
        except OSError:
            return  # one of the two has left
        finally:
            stream.close()
        if stream.close_reason:
            print(f"corral: {safe(stream.close_reason)}", file=sys.stderr)
