"""ssh through Corral beside a plain `ssh -J` in the same run: first output, and bytes down and up.

The plain jump is two sshd of the bench's own on loopback. Both targets are this host's sshd with the
same ciphers; Corral's runs in a container. Turns are taken, so that both meet the same noise.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench.figures import Result, say, spending, spread, timed_ms
from bench.ground import free_port, temporary
from tests.e2e.stack import Stack
from tests.podman import make_key

NAME = "bench"
MEGABYTES = 300
FIRST_TIMES, BYTES_TIMES = 7, 3
Command = Sequence[str]


def measure(stack: Stack) -> Result:
    """Return both ways' figures and their ratios (above 1: Corral is better)."""
    stack.create(NAME, image=None, vcpu=2, ram_gib=2, ssh_keys=["key"])
    with _jump() as plain:
        corral = stack.ssh_command(NAME)
        tls = stack.url.startswith("https")
        say(f"ssh: first output, {FIRST_TIMES} turns, TLS {'on' if tls else 'off'}")
        first = _turns(FIRST_TIMES, [lambda: _first(plain), lambda: _first(corral)])
        say(f"ssh: {MEGABYTES} MB down and up, {BYTES_TIMES} turns")
        cpu: list[float] = []
        down = _turns(BYTES_TIMES, [lambda: _down(plain), lambda: cpu.append(_cpu_s_per_gb(stack, corral))])
        up = _turns(BYTES_TIMES, [lambda: _up(plain), lambda: _up(corral)])
    stack.terminate(NAME)
    return {
        "tls": tls,
        "first_output_ms": {"plain_jump": spread(first[0]), "corral": spread(first[1])},
        "first_output_ratio": round(median(first[0]) / median(first[1]), 2),
        "down": _rates(down),
        "up": _rates(up),
        "site_cpu_s_per_gb_down": round(median(cpu), 2),
        "target_ratio": 0.45 if tls else 1.0,
    }


def _turns(times: int, acts: Sequence[Callable[[], object]]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(times):
        for act, seen in zip(acts, taken, strict=True):
            seen.append(timed_ms(act))
    return taken


def _rates(taken: list[list[float]]) -> Result:
    plain, corral = ([1000 * MEGABYTES / ms for ms in each] for each in taken)
    return {
        "plain_jump_mb_s": round(median(plain)),
        "corral_mb_s": round(median(corral)),
        "ratio": round(median(corral) / median(plain), 2),
        "ratio_of_each_turn": [round(c / p, 2) for p, c in zip(plain, corral, strict=True)],
    }


def _first(ssh: Command) -> None:
    subprocess.run([*ssh, "echo x"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _down(ssh: Command) -> None:
    command = [*ssh, f"dd if=/dev/zero bs=1M count={MEGABYTES} 2>/dev/null"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _cpu_s_per_gb(stack: Stack, ssh: Command) -> float:
    with spending(stack.site_pid) as spent:
        _down(ssh)
    return spent.cpu_s / MEGABYTES * 1000


def _up(ssh: Command) -> None:
    source = subprocess.Popen(
        ["dd", "if=/dev/zero", "bs=1M", f"count={MEGABYTES}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with source:
        subprocess.run([*ssh, "cat >/dev/null"], check=True, stdin=source.stdout, stdout=subprocess.DEVNULL)


@contextmanager
def _jump() -> Iterator[list[str]]:
    """Two sshd on loopback; yields the command that goes through the first to the second."""
    with temporary() as folder, ExitStack() as ending:
        key = make_key(folder)
        (folder / "authorized_keys").write_text(f"{key.public}\n")
        ports = [ending.enter_context(_sshd(folder, name)) for name in ("jump", "target")]
        lines = ["Host *", f"IdentityFile {key.private}", "IdentitiesOnly yes", "User root", "LogLevel ERROR"]
        lines += ["StrictHostKeyChecking yes", f"UserKnownHostsFile {folder}/known_hosts"]
        lines += [f"Host {name}\nHostName 127.0.0.1\nPort {port}\nHostKeyAlias {name}" for name, port in ports]
        (folder / "config").write_text("\n".join(lines) + "\n")
        yield ["ssh", "-F", str(folder / "config"), "-J", "jump", "target"]


@contextmanager
def _sshd(folder: Path, name: str) -> Iterator[tuple[str, int]]:
    """One sshd with a host key of its own; yields (its name in the configuration, its port)."""
    host_key = make_key(folder, f"host-{name}")
    with (folder / "known_hosts").open("a") as known:
        known.write(f"{name} {' '.join(host_key.public.split()[:2])}\n")
    port = free_port()
    lines = [f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {host_key.private}", "PidFile none", "UsePAM no"]
    lines += [f"AuthorizedKeysFile {folder}/authorized_keys", "StrictModes no", "PasswordAuthentication no"]
    config = folder / f"sshd-{name}"
    config.write_text("\n".join(lines) + "\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd parts from its privileges
    log = (folder / f"sshd-{name}.log").open("wb")
    with log:
        process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=log)
    try:
        _listening(port, process)
        yield name, port
    finally:
        process.terminate()
        process.wait(10)


def _listening(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("the bench's sshd did not start")
