"""ssh into a compute cluster through the control plane, as a person does it (spec 20, "Connect")."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.agent.images import BASE_IMAGE
from corral.client import config
from tests.e2e.stack import Stack, _end
from tests.live_server import eventually
from tests.podman import make_key

pytestmark = pytest.mark.podman


@pytest.fixture(scope="module")
def base(stack: Stack) -> Iterator[str]:
    """A compute cluster of the base image, for tests that leave it as it was."""
    stack.create("base", image=BASE_IMAGE, ssh_keys=["key"])
    yield "base"
    stack.terminate("base")


@pytest.fixture(scope="module")
def host_config(stack: Stack, base: str) -> Path:
    """What `corral ssh-config` wrote: plain ssh reads it."""
    done = stack.corral("ssh-config", "-i", str(stack.key.private), base)
    assert done.returncode == 0, done.stderr
    return stack.folder / ".ssh" / "config"


def test_corral_ssh_runs_a_command_and_passes_on_its_exit_code(stack: Stack, base: str) -> None:
    done = stack.corral("ssh", "-i", str(stack.key.private), base, "--", "hostname; exit 7")
    assert (done.returncode, done.stdout.strip()) == (7, "base"), done.stderr


def test_input_and_output_of_any_bytes_pass(stack: Stack, base: str) -> None:
    data = os.urandom(3_000_000)
    command = stack.ssh_command(base, "cat")
    done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=True, env=stack.env)
    assert done.stdout == data


def test_an_image_without_sshd_is_reached_all_the_same(stack: Stack) -> None:
    stack.create("tiny")
    try:
        assert stack.said("tiny", "cat /proc/1/comm && busybox | head -1").count("BusyBox") == 1
    finally:
        stack.terminate("tiny")


def test_ssh_config_makes_plain_ssh_scp_sftp_and_rsync_work(stack: Stack, base: str, host_config: Path) -> None:
    config = ["-F", str(host_config)]
    payload = stack.folder / "payload"
    payload.write_bytes(os.urandom(200_000))
    digest = hashlib.sha256(payload.read_bytes()).hexdigest()

    def run(*command: str, input: str = "") -> str:
        done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=60, env=stack.env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("ssh", *config, base, "hostname").strip() == "base"
    run("scp", *config, str(payload), f"{base}:/tmp/by-scp")
    run("sftp", *config, "-b", "-", base, input=f"put {payload} /tmp/by-sftp\n")
    run("rsync", "-a", "-e", f"ssh -F {host_config}", str(payload), f"{base}:/tmp/by-rsync")
    sums = run("ssh", *config, base, "sha256sum /tmp/by-scp /tmp/by-sftp /tmp/by-rsync")
    assert sums.count(digest) == 3
    run("scp", *config, f"{base}:/tmp/by-scp", str(stack.folder / "back"))
    assert (stack.folder / "back").read_bytes() == payload.read_bytes()


def test_ssh_config_is_included_once_and_keeps_what_was_there(stack: Stack, base: str) -> None:
    config = stack.folder / ".ssh" / "config"
    for _ in range(2):
        assert stack.corral("ssh-config", base).returncode == 0
    assert config.read_text().count("Include") == 1


SERVER = """
import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"inside " + self.path.encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8123), H).serve_forever()
"""


@contextmanager
def web_server(stack: Stack, name: str) -> Iterator[None]:
    """A web server on the loopback of a compute cluster."""
    process = stack.open_ssh(name, f"exec python3 -c '{SERVER}'".replace('"', '"'))
    try:
        eventually(
            lambda: stack.ssh(name, "ss -ltn 2>/dev/null | grep -q 8123 || grep -q :1FBB /proc/net/tcp").returncode == 0
        )
        yield
    finally:
        _end(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def fetch(port: int, path: str = "/x") -> str | None:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return sock.makefile("rb").read().rpartition(b"\r\n\r\n")[2].decode() or None
    except OSError:
        return None


def test_a_port_inside_is_reached_by_forward_by_dash_l_and_by_a_socks_proxy(stack: Stack, base: str) -> None:
    local, socks, forwarded = free_port(), free_port(), free_port()
    with web_server(stack, base):
        tunnel = ["-N", "-L", f"{local}:127.0.0.1:8123", "-D", str(socks)]
        process = stack.open_ssh(base, arguments=tunnel)
        eventually(lambda: fetch(local) == "inside /x")
        proxied = subprocess.run(
            ["curl", "-s", "--socks5-hostname", f"127.0.0.1:{socks}", "http://127.0.0.1:8123/y"],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert proxied.stdout == "inside /y"
        _end(process)
        forward = subprocess.Popen(
            [sys.executable, "-m", "corral", "forward", base, f"{forwarded}:8123"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=stack.env,
        )  # fmt: skip
        try:
            eventually(lambda: fetch(forwarded, "/z") == "inside /z")
            answers: list[str | None] = []
            threads = [threading.Thread(target=lambda: answers.append(fetch(forwarded, "/many"))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert answers == ["inside /many"] * 8
        finally:
            forward.terminate()
            forward.communicate(timeout=20)


def test_a_port_nobody_listens_on_says_so(stack: Stack, base: str) -> None:
    forwarded = free_port()
    forward = subprocess.Popen(
        [sys.executable, "-m", "corral", "forward", base, f"{forwarded}:9"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=stack.env,
    )  # fmt: skip
    try:
        eventually(lambda: _connects(forwarded))
        assert fetch(forwarded) is None
    finally:
        forward.terminate()
        _, said = forward.communicate(timeout=20)
    assert "nothing listens" in said


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_host_key_is_pinned_and_another_one_is_refused(stack: Stack, base: str) -> None:
    pin = stack.folder / "hosts" / stack.at(base).alias
    assert stack.said(base, "hostname") == "base"
    shown = stack.workspace.compute_cluster(base).connection().host_key
    assert pin.read_text().split()[1:3] == shown.split()[:2]
    # What the machine's sshd really has is what was pinned.
    other = make_key(stack.folder, "other-host")
    pin.write_text(f"{stack.at(base).alias} {other.public}\n")
    pin.chmod(0o400)
    command = stack.ssh_command(base, "hostname")
    proxy = next(i for i, part in enumerate(command) if part.startswith("UserKnownHostsFile="))
    command[proxy] = f"UserKnownHostsFile={stack.folder / 'wrong'}"
    (stack.folder / "wrong").write_text(f"{stack.at(base).alias} {other.public}\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=stack.env)
    assert done.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stderr or "verification failed" in done.stderr


def test_without_a_key_of_ones_own_ssh_says_which_reason_it_is(stack: Stack) -> None:
    stack.create("keyless", ssh_keys=[])
    try:
        done = stack.corral("ssh", "keyless", "--", "true")
        assert done.returncode == 255
        assert "No SSH key of yours is attached" in done.stderr
        stack.workspace.compute_cluster("keyless").attach_ssh_keys(["key"])
        eventually(lambda: stack.ssh("keyless", "true").returncode == 0)
        stranger = make_key(stack.folder, "stranger")
        done = stack.corral("ssh", "-i", str(stranger.private), "keyless", "--", "true")
        assert done.returncode == 255
    finally:
        stack.terminate("keyless")
    gone = stack.corral("ssh", "keyless", "--", "true")
    assert gone.returncode == 255


def test_a_key_detached_closes_its_owners_sessions_and_lets_none_in(stack: Stack) -> None:
    stack.create("detach", ssh_keys=["key"])
    try:
        session = stack.open_ssh("detach", "echo in; exec cat")
        assert session.stdout is not None
        assert session.stdout.readline() == b"in\n"
        stack.workspace.compute_cluster("detach").detach_ssh_keys(["key"])
        assert session.wait(5) == 255
        assert stack.ssh("detach", "true").returncode == 255
    finally:
        stack.terminate("detach")


def test_a_removed_members_sessions_close_at_once(stack: Stack) -> None:
    eve = stack.add_person("eve")
    key = make_key(stack.folder, "eve")
    eve.add_ssh_key(key.public, "eve")
    workspace = eve.org("acme").workspace("research")
    workspace.create_compute_cluster("eves", image="localhost/busybox:latest", vcpu=1, ram_gib=1, storage_gib=1)
    stack.until("eves", "active")
    try:
        mine = eve.transport.site
        file = stack.folder / "eve.json"
        config.save(config.Known().with_site(config.Site(mine.url, mine.token, mine.ca, "acme", "research")), file)
        env = {**stack.env, "CORRAL_CONFIG": str(file)}
        command = stack.ssh_command("eves", "echo in; exec cat", key=key.private)
        command = [part.replace(stack.env["CORRAL_CONFIG"], str(file)) for part in command]
        pipe = subprocess.PIPE
        session = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        try:
            assert session.stdout is not None
            assert session.stdout.readline() == b"in\n", session.stderr and session.stderr.read()
            stack.owner.org("acme").remove_member("eve")
            assert session.wait(5) == 255
        finally:
            _end(session)
        again = subprocess.run(command, capture_output=True, timeout=60, env=env, stdin=subprocess.DEVNULL)
        assert again.returncode == 255
    finally:
        stack.terminate("eves")


def test_terminating_closes_open_sessions_and_leaves_nothing(stack: Stack) -> None:
    stack.create("ending", ssh_keys=["key"])
    session = stack.open_ssh("ending", "echo in; exec cat")
    assert session.stdout is not None
    assert session.stdout.readline() == b"in\n"
    id = stack.show("ending").id
    stack.workspace.compute_cluster("ending").terminate()
    assert session.wait(5) == 255
    stack.until(id, "terminated")


def test_a_session_that_is_closed_leaves_no_process_inside(stack: Stack, base: str) -> None:
    session = stack.open_ssh(base, "echo in; exec sleep 4242")
    assert session.stdout is not None
    assert session.stdout.readline() == b"in\n"
    assert stack.ssh(base, "pgrep -f 'sleep 4242'").returncode == 0
    _end(session)
    eventually(lambda: stack.ssh(base, "pgrep -fx 'sleep 4242'").returncode == 1)
