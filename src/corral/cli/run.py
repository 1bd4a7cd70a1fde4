"""Running a command: exit codes (the list is in `corral --help`) and how errors are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from corral.cli.output import safe, shown
from corral.cli.root import root
from corral.client.errors import BAD_ANSWER, NOT_LOGGED_IN, UNREACHABLE, UNTRUSTED, CorralError

FAILED, USAGE, NOT_FOUND, FORBIDDEN, NO_SITE, INTERRUPTED = 1, 2, 3, 4, 5, 130

_NEXT = {
    "UNAUTHENTICATED": "Run `corral login LINK`, or `corral login URL --user NAME`.",
    "NOT_FOUND": "`corral … list` shows what is there; --org and --workspace choose where.",
    "NO_CAPACITY": "`corral machine list` shows what is free; --queue waits for it.",
    "QUOTA_EXCEEDED": "Terminate a compute cluster, or ask an admin for more quota.",
    "NO_ACCESS": "Ask an admin for access: `corral workspace access grant`.",
    "NO_SSH_KEY": "`corral ssh-key add`, then `corral compute keys attach NAME`.",
    "CLUSTER_REQUIRED": "Name one with --cluster; `corral cluster list` shows them.",
    "NODE_IN_USE": "corral machine remove NAME --force ends that work as lost.",
    "INTERNAL": "The site's log says more under this request id.",
    "RATE_LIMITED": "Wait a little, then try again.",
}
"""What to type next, by code: only where a command helps beyond the message."""


def run(args: Sequence[str]) -> int:
    """Run `corral` with `args`; returns the exit code. Errors: BrokenPipeError, for the caller."""
    try:
        result = root.main(list(args), prog_name="corral", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except CorralError as error:
        _show(error, as_json="--json" in args[: args.index("--") if "--" in args else None])
        return exit_code(error)
    except SystemExit as error:
        # Outside its standalone mode click exits by itself only where a pipe was closed.
        raise BrokenPipeError from error
    except click.exceptions.Abort:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code


def exit_code(error: CorralError) -> int:
    """Return what a refusal means to a script."""
    if error.code in (UNREACHABLE, UNTRUSTED, BAD_ANSWER):
        return NO_SITE
    if error.code in (NOT_LOGGED_IN, "FORBIDDEN") or error.status == 401:
        return FORBIDDEN
    if error.status == 404:
        return NOT_FOUND
    return FAILED


def _show(error: CorralError, *, as_json: bool) -> None:
    if as_json:
        shape = {
            "code": error.code,
            "message": error.message,
            "details": error.details,
            "request_id": error.request_id,
        }
        print(json.dumps(shape, indent=2), file=sys.stderr)
        return
    print(f"error: {safe(error.code)}: {safe(error.message)}", file=sys.stderr)
    for line in _reasons(error):
        if line in safe(error.message):
            continue  # the message has said it
        print(f"  {line}", file=sys.stderr)
    if error.code in _NEXT:
        print(f"next: {_NEXT[error.code]}", file=sys.stderr)
    if error.request_id:
        print(f"request: {safe(error.request_id)}", file=sys.stderr)


def _reasons(error: CorralError) -> list[str]:
    """Return the details as lines: a list of objects becomes `name: why`."""
    lines = []
    for key, value in error.details.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for item in value[:50]:
                name, *rest = [shown(part) for part in item.values() if part not in (None, "")] or ["-"]
                lines.append(f"{name}: {', '.join(rest)}" if rest else name)
        elif value is not None and key not in ("field", "retry_after_s"):
            lines.append(f"{safe(key)}: {shown(value)}")
    return lines
