"""The one line that adds a machine (spec 10, "Join tokens"), and the one that takes its agent off ("Remove a
machine"): pasted into a root shell of the machine.

No token stands in a process list: the line's own shell writes it to a file with its built-in
`printf`. The script is downloaded whole before any of it runs, so a failed download runs
nothing and keeps the token. Nothing but the site's address, its CA and the token is in the line.
"""

from __future__ import annotations

from shlex import quote

_SCRIPT = "printf '%s\\n' \"$s\""


def install_line(url: str, token: str, ca_pem: str | None) -> str:
    """Return the line. `ca_pem`: the CA to pin; None where the machine's own trust is meant to do.

    `$t` is the token's file, `$c` the CA's, `$s` the script.
    """
    pinned = ca_pem is not None
    steps = [
        "umask 077; t=$(mktemp)",
        _write([token], "$t"),
        *(["c=$(mktemp)", _write((ca_pem or "").split("\n"), "$c")] if pinned else []),
        f"s=$({_download(quote(f'{url}/api/v1/install.sh'), pinned)})",
        f'{_SCRIPT} | sh -s -- --url {quote(url)} --token-file "$t"' + (' --ca-file "$c"' if pinned else ""),
        'rm -f "$t"' + (' "$c"' if pinned else ""),
    ]
    failed = 'echo "Not done: see above, then run this line again." >&2; exit 1'
    return f"( {' && '.join(steps)} || {{ {failed}; }} )"


def uninstall_line(url: str, ca_pem: str | None) -> str:
    """Return the line that takes the agent off a machine; its data stays there. It holds no secret."""
    pinned = ca_pem is not None
    steps = [
        *(["umask 077; c=$(mktemp)", _write((ca_pem or "").split("\n"), "$c")] if pinned else []),
        f"s=$({_download(quote(f'{url}/api/v1/install.sh'), pinned)})",
        f"{_SCRIPT} | sh -s -- --uninstall",
        *(['rm -f "$c"'] if pinned else []),
    ]
    return f"( {' && '.join(steps)} )"


def _write(lines: list[str], file: str) -> str:
    """Return a command that writes these lines; whatever they hold, the shell takes none of it for its own."""
    return f"printf '%s\\n' {' '.join(quote(line) for line in lines if line)} >\"{file}\""


def _download(script: str, pinned: bool) -> str:
    """Return a command that prints the script: by curl, or by wget where there is no curl."""
    curl, wget = (' --cacert "$c"', ' --ca-certificate="$c"') if pinned else ("", "")
    return f"if command -v curl >/dev/null; then curl -fsSL{curl} {script}; else wget -qO-{wget} {script}; fi"
