"""Entry: runs a command and turns what went wrong into a message and an exit code that mean something."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from corral.cli import run

EXIT_BROKEN_PIPE = 141
"""As a program has that SIGPIPE ended: whoever read our output had enough."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `corral` with `argv` (None: the process's own). Returns the exit code."""
    try:
        code = run.run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
