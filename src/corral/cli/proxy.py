"""The ProxyCommand: `python -m corral.cli.proxy SITE ORG WORKSPACE NAME` joins ssh to a compute cluster.

Standard library only, and as little of it as will do: ssh starts this for every connection.
"""

from __future__ import annotations

import os
import sys

from corral.client import config
from corral.client.errors import CorralError
from corral.client.ssh import Cluster, write_pin
from corral.client.streams import StreamError, open_stream


def main(arguments: list[str]) -> int:
    """Serve one connection on stdin and stdout. Returns ssh's own exit code for failures, 255."""
    if len(arguments) != 4:
        print("usage: python -m corral.cli.proxy SITE ORG WORKSPACE NAME", file=sys.stderr)
        return 2
    cluster = Cluster(*arguments)
    try:
        stream = open_stream(config.site(cluster.site), cluster.stream_path, target="ssh")
    except (StreamError, CorralError) as error:
        print(f"corral: {error.message}{f' ({error.code})' if error.code else ''}", file=sys.stderr)
        return 255
    try:
        write_pin(cluster, stream.headers.get("x-corral-host-key", ""))
        stream.pump(sys.stdin.fileno(), sys.stdout.fileno())
    except ValueError as error:
        print(f"corral: cannot pin the host key: {error}. Try again in a moment.", file=sys.stderr)
        return 255
    except (BrokenPipeError, ConnectionResetError):
        return 0  # ssh has left, or the site has; ssh says what that means for it
    finally:
        stream.close()
    if stream.close_reason:
        print(f"corral: {stream.close_reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    # os._exit: no interpreter shutdown between the last byte and ssh.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
