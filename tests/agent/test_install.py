"""install.sh with a real shell, a real site and a real agent (spec 40, "Joining"; security cases 6-8, 12, 13).

Nothing of this host is touched: the agent goes into a temporary folder with the `sim` driver, and
what a test changes of /etc, /run or /usr stands in a mount namespace of its own.
"""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corral.agent import release
from corral.agent.state import StateFolder
from corral.server import artefact
from corral.server.install_line import uninstall_line
from corral.server.routes.agent_files import install_script
from corral.store.engine import Database
from tests import podman, releases
from tests.live_server import Site, eventually, live_server
from tests.world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="install.sh runs as root")

SCRIPT = install_script()
HASTY = SCRIPT.replace(b'"$agent" join ', b'"$agent" join --wait 0 ')
"""The agent tries to join for two minutes; for tests without a site it is told to give up at once."""
DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n'


@dataclass
class Host:
    """A host to be: folders for the agent, and programs that go before the system's."""

    folder: Path

    @property
    def prefix(self) -> Path:
        return self.folder / "opt" / "corral-agent"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def flags(self) -> list[str]:
        return ["--driver", "sim", "--prefix", str(self.prefix), "--state-dir", str(self.state)]

    def program(self, name: str, text: str) -> None:
        """Put a shell script before the system's program of that name."""
        self.programs.mkdir(exist_ok=True)
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def env(self) -> dict[str, str]:
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        path = f"{self.programs}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": "/root", "TMPDIR": str(scratch), "LC_ALL": "C"}

    def shell(
        self, text: bytes | str, *arguments: str, before: Sequence[str] = (), shell: str = "dash"
    ) -> subprocess.CompletedProcess[str]:
        """Run a script from standard input, as a pipe from a download does."""
        script = text if isinstance(text, bytes) else text.encode()
        run = [*before, shell, "-s", "--", *arguments]
        done = subprocess.run(run, input=script, env=self.env(), capture_output=True, timeout=120, check=False)
        return subprocess.CompletedProcess(run, done.returncode, done.stdout.decode(), done.stderr.decode())

    def install(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return self.shell(SCRIPT, *self.flags, *arguments, **more)

    def token_file(self, token: str) -> Path:
        path = self.folder / "token"
        path.write_text(token + "\n")
        return path

    def leftovers(self) -> list[str]:
        """Return what is in the folder for temporary files."""
        return [path.read_text() for path in (self.folder / "tmp").iterdir()]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "host")
    made.folder.mkdir()
    yield made
    # The agent is no child of ours: take it off as people do.
    done = made.install("--uninstall")
    assert done.returncode == 0, done.stderr
    assert not StateFolder(made.state).held()


@pytest.fixture
def site(sqlite_db: Database, world: World) -> Iterator[Site]:
    with live_server(sqlite_db) as running:
        world.app = running.app
        yield running


def new_token(world: World, site: Site) -> dict[str, str]:
    """Return the answer that has token and line, as the running site gives it."""
    import httpx

    path = f"{site.url}/api/v1/orgs/acme/clusters/default/enrollment-tokens"
    headers = {"Authorization": f"Bearer {world.tokens['admin']}"}
    made: dict[str, str] = (
        httpx.post(path, json={"labels": {"pool": "h100"}}, headers=headers).raise_for_status().json()
    )
    return made


def machines(world: World) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = world.client("admin").get("/api/v1/orgs/acme/clusters/default/nodes").json()["items"]
    return items


def line_for(host: Host, made: dict[str, str]) -> str:
    """Return the install line with this test's folders."""
    return made["install"].replace("sh -s -- ", f"sh -s -- {' '.join(host.flags)} ")


@contextmanager
def bundle(folder: Path) -> Iterator[Path]:
    """Yield a folder with a good artefact."""
    made = artefact.build(folder)
    (folder / "made-of").unlink()
    assert made.pyz.exists()
    yield folder


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_line_adds_this_host_and_leaves_no_token(host: Host, site: Site, world: World, shell: str) -> None:
    made = new_token(world, site)
    seen = host.folder / "seen"
    for name in ("curl", "setsid", "mktemp", "sha256sum"):
        real = shutil.which(name)
        host.program(name, f'cat /proc/[0-9]*/cmdline >>{seen} 2>/dev/null\nexec {real} "$@"')
    done = host.shell(line_for(host, made), shell=shell)
    assert done.returncode == 0, done.stderr
    assert "done: agent" in done.stdout
    (machine,) = eventually(lambda: [one for one in machines(world) if one["state"] == "up"])
    assert machine["pool"] == "h100"
    assert host.leftovers() == []
    assert sorted(path.name for path in host.prefix.iterdir()) == ["corral-agent", "corral-agent.pyz"]
    assert not (host.state / "join-token").exists()
    assert made["token"].split("_")[2].encode() not in seen.read_bytes()
    assert host.state.stat().st_mode & 0o077 == 0


def test_run_again_it_repairs_and_stays_the_same_machine(host: Host, site: Site, world: World) -> None:
    assert host.shell(line_for(host, new_token(world, site))).returncode == 0
    first = eventually(lambda: machines(world))[0]["id"]
    pid = (host.state / "agent.pid").read_text()
    (host.prefix / "corral-agent.pyz").write_text("broken")
    done = host.shell(line_for(host, new_token(world, site)))
    assert done.returncode == 0, done.stderr
    assert [one["id"] for one in machines(world)] == [first]
    assert (host.state / "agent.pid").read_text() != pid
    assert StateFolder(host.state).held()


def test_without_a_token_it_upgrades_what_has_joined(host: Host, site: Site, world: World) -> None:
    assert host.shell(line_for(host, new_token(world, site))).returncode == 0
    assert host.install("--url", site.url).returncode == 0
    assert len(machines(world)) == 1


def test_a_failed_download_runs_nothing_and_keeps_the_token(host: Host, site: Site, world: World) -> None:
    made = new_token(world, site)
    line = line_for(host, made).replace("/api/v1/install.sh", "/api/v1/nothing.sh")
    done = host.shell(line)
    assert done.returncode == 1
    assert "run this line again" in done.stderr
    assert host.leftovers() == [made["token"] + "\n"]
    assert not host.state.exists()
    assert host.shell(line_for(host, made)).returncode == 0


def test_where_there_is_no_curl_the_line_takes_wget(host: Host, site: Site, world: World) -> None:
    if shutil.which("wget") is None:
        pytest.skip("wget is not installed")
    made = new_token(world, site)
    host.programs.mkdir()
    for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for program in Path(folder).iterdir():
            link = host.programs / program.name
            if program.name != "curl" and not link.is_symlink():
                link.symlink_to(program)
    path = {"PATH": str(host.programs), "TMPDIR": str(host.folder), "HOME": "/root"}
    line = line_for(host, made)
    done = subprocess.run(["dash"], input=line.encode(), env=path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(host.programs)


def test_a_used_token_is_refused_for_good(host: Host, site: Site, world: World, tmp_path: Path) -> None:
    made = new_token(world, site)
    assert host.shell(line_for(host, made)).returncode == 0
    other = Host(tmp_path / "other")
    other.folder.mkdir()
    done = other.shell(line_for(other, made))
    assert done.returncode == 1
    assert "Another machine joined with this token" in done.stderr
    assert not (other.state / "join-token").exists()
    assert not StateFolder(other.state).held()
    assert len(machines(world)) == 1


def test_an_interrupted_installation_goes_on_with_the_token_it_kept(
    host: Host, site: Site, world: World, tmp_path: Path
) -> None:
    token = host.token_file(new_token(world, site)["token"])
    with bundle(tmp_path / "art") as good:
        (good / "SHA256SUMS").rename(good / "sums")
        done = host.install("--url", site.url, "--token-file", str(token), "--artefact", str(good))
        assert done.returncode == 1
        assert not token.exists()
        assert (host.state / "join-token").stat().st_mode & 0o077 == 0
        (good / "sums").rename(good / "SHA256SUMS")
        done = host.install("--url", site.url, "--artefact", str(good))
    assert done.returncode == 0, done.stderr
    assert len(machines(world)) == 1


def test_when_the_site_does_not_answer_the_token_is_kept(host: Host, tmp_path: Path) -> None:
    token = host.token_file("corj_aaaaaaaaaa_" + "a" * 39 + "_aaaaaaa")
    with bundle(tmp_path / "art") as good:
        arguments = ["--url", "http://127.0.0.1:9", "--token-file", str(token), "--artefact", str(good)]
        done = host.shell(HASTY, *host.flags, *arguments)
    assert done.returncode == 1
    assert "the token is kept" in done.stderr
    assert (host.state / "join-token").read_text() == "corj_aaaaaaaaaa_" + "a" * 39 + "_aaaaaaa\n"
    assert not StateFolder(host.state).held()


GOOD = "0" * 64


@pytest.mark.parametrize(
    "sums",
    [
        "",
        f"{GOOD}  corral-agent.pyz\n",
        "SUM  xcorral-agent.pyz\n",
        "SUM  corral-agent.pyz.sig\n",
        "SUM  ./corral-agent.pyz\n",
        "SUM  corral-agent.pyz extra\n",
        "SUM  corral-agentxpyz\n",
        "SUM  corral-agent.pyz\nSUM  corral-agent.pyz\n",
        f"SUM  corral-agent.pyz\n{GOOD}  corral-agent.pyz\n",
        "CAPITALS  corral-agent.pyz\n",
        "  corral-agent.pyz\n",
    ],
)
def test_anything_but_one_exact_matching_checksum_changes_nothing(host: Host, tmp_path: Path, sums: str) -> None:
    token = host.token_file("corj_x")
    host.prefix.mkdir(parents=True)
    (host.prefix / "corral-agent.pyz").write_text("old")
    with bundle(tmp_path / "art") as folder:
        real = (folder / "SHA256SUMS").read_text().split()[0]
        (folder / "SHA256SUMS").write_text(sums.replace("SUM", real).replace("CAPITALS", real.upper()))
        arguments = ["--url", "http://127.0.0.1:9", "--token-file", str(token), "--artefact", str(folder)]
        done = host.shell(HASTY, *host.flags, *arguments)
    assert done.returncode == 1
    assert "next step" in done.stderr
    assert [path.name for path in host.prefix.iterdir()] == ["corral-agent.pyz"]
    assert (host.prefix / "corral-agent.pyz").read_text() == "old"


def test_an_agent_that_does_not_run_here_leaves_the_old_one(host: Host, tmp_path: Path) -> None:
    host.prefix.mkdir(parents=True)
    (host.prefix / "corral-agent.pyz").write_text("old")
    folder = tmp_path / "art"
    folder.mkdir()
    (folder / "corral-agent.pyz").write_bytes(b"import nothing_of_this_name\n")
    subprocess.run("sha256sum corral-agent.pyz >SHA256SUMS", shell=True, cwd=folder, check=True)
    token = host.token_file("corj_x")
    done = host.install("--url", "http://127.0.0.1:9", "--token-file", str(token), "--artefact", str(folder))
    assert done.returncode == 1
    assert "does not run" in done.stderr
    assert (host.prefix / "corral-agent.pyz").read_text() == "old"


def test_cut_at_any_byte_it_runs_nothing(host: Host) -> None:
    token = host.token_file("corj_x")
    end = len(SCRIPT.rstrip())
    cuts = [*range(0, end, 211), *range(end - 60, end)]
    for cut in cuts:
        done = host.shell(SCRIPT[:cut], *host.flags, "--url", "http://127.0.0.1:9", "--token-file", str(token))
        assert done.stdout == "", cut
        assert token.exists(), cut
        assert not host.state.exists(), cut


def test_it_is_a_plain_posix_script() -> None:
    for shell in (["dash", "-n"], ["bash", "--posix", "-n"], ["busybox", "sh", "-n"]):
        if shutil.which(shell[0]):
            subprocess.run(shell, input=SCRIPT, check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    subprocess.run(["shellcheck", "-s", "sh", "-"], input=SCRIPT, check=True)


def test_it_must_run_as_root(host: Host) -> None:
    done = host.install("--url", "http://127.0.0.1:9", before=["setpriv", "--reuid=65534", "--clear-groups", "--"])
    assert done.returncode == 1
    assert "must run as root" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--url is missing"),
        (["--url", "http://127.0.0.1:9"], "--token-file is missing"),
        (["--url"], "--url needs a value"),
        (["--what"], "unknown argument"),
        (["--prefix", "relative"], "not an absolute path"),
        (["--prefix", "/a;id"], "characters that are not allowed"),
        (["--state-dir", "/a/../b"], "characters that are not allowed"),
        (["--driver", "docker"], "unknown driver"),
        (["--proxy", "x';id;'"], "not a URL"),
        (["--url", "http://127.0.0.1:9", "--token-file", "/nonexistent"], "cannot be read"),
        (["--url", "http://127.0.0.1:9", "--token-file", "/dev/null"], "is empty"),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(host: Host, arguments: list[str], said: str) -> None:
    done = host.install(*arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert "next step" in done.stderr


def test_uninstall_takes_off_all_but_the_data(host: Host, site: Site, world: World) -> None:
    assert host.shell(line_for(host, new_token(world, site))).returncode == 0
    done = host.install("--uninstall")
    assert done.returncode == 0, done.stderr
    assert not host.prefix.exists()
    assert not StateFolder(host.state).held()
    kept = {path.name for path in host.state.iterdir()}
    assert {"key", "machine.json"} <= kept
    assert not kept & {"agent.pid", "agent.log", "join-token"}
    assert host.install("--uninstall").returncode == 0


@pytest.mark.parametrize("ca", [None, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_the_line_of_a_removal_takes_the_agent_off(ca: str | None, host: Host, site: Site, world: World) -> None:
    assert host.shell(line_for(host, new_token(world, site))).returncode == 0
    line = uninstall_line(site.url, ca).replace("sh -s -- ", f"sh -s -- {' '.join(host.flags)} ")
    done = host.shell(line)
    assert done.returncode == 0, done.stderr
    assert not host.prefix.exists()
    assert not StateFolder(host.state).held()


def test_uninstall_ends_what_a_removed_machine_ran(host: Host, site: Site, world: World) -> None:
    if podman.why_not():
        pytest.skip(podman.why_not())
    assert host.shell(line_for(host, new_token(world, site))).returncode == 0
    (machine,) = machines(world)
    path = f"/api/v1/orgs/acme/clusters/default/nodes/{machine['name']}"
    gone = world.client("admin").delete(path)
    assert gone.status_code == 200
    eventually(lambda: not StateFolder(host.state).held())
    left = host.state / "podman" / "allocations"
    left.mkdir(parents=True)
    done = host.install("--uninstall")
    assert done.returncode == 0, done.stderr
    assert "was removed" in done.stdout + done.stderr
    assert not left.parent.exists()
    assert not host.prefix.exists()


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also where nobody has taken note of that yet (a zombie)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_an_agent_that_it_put_on_updates_itself_and_stays_its_own(
    host: Host, sqlite_db: Database, world: World, tmp_path: Path
) -> None:
    with bundle(tmp_path / "art") as folder:
        new = releases.release(folder / artefact.PYZ, tmp_path / "new", "9.9.9")
        with live_server(sqlite_db, artefact=new) as site:
            world.app.state.artefact = new
            token = host.token_file(new_token(world, site)["token"])
            done = host.install("--url", site.url, "--token-file", str(token), "--artefact", str(folder))
            assert done.returncode == 0, done.stderr
            (machine,) = eventually(lambda: [one for one in machines(world) if one["state"] == "up"])
            assert machine["behind"]
            pid = (host.state / "agent.pid").read_text()
            asked = world.client("admin").post(f"/api/v1/orgs/acme/clusters/default/nodes/{machine['name']}/update")
            assert asked.status_code == 202
            eventually(lambda: [(one["release"], one["update"]) for one in machines(world)] == [("9.9.9", None)])
            names = ["corral-agent", "corral-agent.pyz"]
            eventually(lambda: sorted(path.name for path in host.prefix.iterdir()) == names)
            starter = [str(host.prefix / "corral-agent"), "status", "--state", str(host.state)]
            said = subprocess.run(starter, capture_output=True, text=True, check=True).stdout
            assert "release: 9.9.9\n" in said and "running: True\n" in said and "update: \n" in said
            assert (host.state / "agent.pid").read_text() == pid
            done = host.install("--url", site.url)
            assert done.returncode == 0, done.stderr
            assert "done: agent 9.9.9 runs here" in done.stdout
            assert (host.state / "agent.pid").read_text() != pid
            assert has_ended(int(pid))


def test_what_an_update_left_is_taken_off_too(host: Host) -> None:
    left = host.prefix / release.BESIDE
    left.mkdir(parents=True)
    (left / artefact.PYZ).write_text("half of a release")
    (host.prefix / "update").mkdir()
    assert host.install("--uninstall").returncode == 0
    assert [path.name for path in host.prefix.iterdir()] == ["update"]


# --- other hosts than this one


@contextmanager
def other_clock(seconds: int, folder: Path) -> Iterator[str]:
    """Serve an artefact by a clock that is so many seconds ahead; yields the URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(folder))

        def translate_path(self, path: str) -> str:
            return str(folder / path.rsplit("/", 1)[1])

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + seconds)

        def log_message(self, *given: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("ahead", "said"), [(900, "behind the site's"), (-900, "ahead of the site's"), (60, "")])
def test_a_clock_that_is_off_is_warned_of(host: Host, tmp_path: Path, ahead: int, said: str) -> None:
    token = host.token_file("corj_x")
    with bundle(tmp_path / "art") as folder, other_clock(ahead, folder) as url:
        done = host.shell(HASTY, *host.flags, "--url", url, "--token-file", str(token))
    assert done.returncode == 1
    assert ("this clock is" in done.stderr) == bool(said)
    assert said in done.stderr


def elsewhere(host: Host, setup: str) -> list[str]:
    """Return a command prefix that runs what follows in a mount namespace of its own after `setup`."""
    script = host.folder / "setup.sh"
    script.write_text(f'set -eu\n{setup}\nexec "$@"\n')
    return ["unshare", "--mount", "--propagation", "private", "sh", str(script)]


@pytest.fixture
def namespaces() -> None:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no mount namespaces here: {done.stderr.decode().strip()}")


def os_release(host: Host, text: str) -> str:
    (host.folder / "os-release").write_text(text)
    return f"mount --bind {host.folder}/os-release $(readlink -f /etc/os-release)"


def podman_flags(host: Host) -> list[str]:
    return [*host.flags, "--driver", "podman"]


@pytest.mark.parametrize("release", ["", "NAME=Thing\n", 'ID="arch"\nID_LIKE=\n', "ID=\n"])
def test_an_unknown_or_minimal_system_is_told_what_is_missing(host: Host, namespaces: None, release: str) -> None:
    where = elsewhere(host, f"{os_release(host, release)}\nmount -t tmpfs none /usr/lib/podman")
    token = host.token_file("corj_x")
    arguments = [*podman_flags(host), "--url", "http://127.0.0.1:9", "--token-file", str(token)]
    done = host.shell(SCRIPT, *arguments, before=where)
    assert done.returncode == 1
    assert "these are missing: /usr/lib/podman/netavark /usr/lib/podman/aardvark-dns" in done.stderr
    assert "next step" in done.stderr


def test_on_debian_what_is_missing_is_installed_and_said(host: Host, namespaces: None, tmp_path: Path) -> None:
    calls = host.folder / "apt"
    host.program(
        "apt-get",
        f'echo "$@" >>{calls}\n'
        f"[ ! -x /usr/sbin/policy-rc.d ] || echo daemons forbidden >>{calls}\n"
        "case $1 in install) touch /usr/lib/podman/netavark ;; esac\n[ ! -t 0 ] && cat >/dev/null",
    )
    setup = (
        f"{os_release(host, DEBIAN)}\nmount -t tmpfs none /usr/lib/podman\n"
        "touch /usr/lib/podman/aardvark-dns\n"
        f"mkdir {host.folder}/sbin-up {host.folder}/sbin-work\n"
        f"mount -t tmpfs none {host.folder}/sbin-up\nmkdir {host.folder}/sbin-up/up {host.folder}/sbin-up/work\n"
        f"mount -t overlay -o lowerdir=/usr/sbin,upperdir={host.folder}/sbin-up/up,workdir={host.folder}/sbin-up/work "
        "none /usr/sbin"
    )
    probe = subprocess.run([*elsewhere(host, setup), "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no overlay mounts here: {probe.stderr.decode().strip()}")
    for name in ("sbin-up", "sbin-work"):
        (host.folder / name).rmdir()
    token = host.token_file("corj_x")
    with bundle(tmp_path / "art") as folder:
        (folder / "SHA256SUMS").unlink()
        arguments = ["--url", "http://127.0.0.1:9", "--token-file", str(token), "--artefact", str(folder)]
        done = host.shell(SCRIPT, *podman_flags(host), *arguments, before=elsewhere(host, setup))
    assert "installing from the distribution: netavark" in done.stdout
    assert "no SHA256SUMS" in done.stderr
    said = calls.read_text().splitlines()
    assert said[0].startswith("update")
    assert said[1] == "daemons forbidden"
    assert said[2] == "install -yq --no-install-recommends netavark"
    assert (
        not Path("/usr/sbin/policy-rc.d").exists()
        or Path("/usr/sbin/policy-rc.d").read_text() != "#!/bin/sh\nexit 101\n"
    )


SYSTEMCTL = """
echo "$@" >>{folder}/calls
unit=/etc/systemd/system/corral-agent.service
case $1 in
restart)
    setsid $(sed -n 's/^ExecStart=//p' $unit) >{folder}/log 2>&1 </dev/null &
    echo $! >{folder}/unit.pid
    cp $unit {folder}/unit
    ;;
stop) [ ! -e {folder}/unit.pid ] || kill "$(cat {folder}/unit.pid)" || true ;;
esac
"""


def test_with_systemd_it_is_a_service(host: Host, namespaces: None, site: Site, world: World) -> None:
    calls = host.folder / "calls"
    host.program("systemctl", SYSTEMCTL.format(folder=host.folder))
    units = host.folder / "units"
    units.mkdir()
    setup = f"mount -t tmpfs none /run\nmkdir -p /run/systemd/system\nmount --bind {units} /etc/systemd/system"
    where = elsewhere(host, setup)
    token = host.token_file(new_token(world, site)["token"])
    done = host.shell(SCRIPT, *host.flags, "--url", site.url, "--token-file", str(token), before=where)
    assert done.returncode == 0, done.stderr
    try:
        assert calls.read_text().splitlines() == [
            "daemon-reload",
            "enable corral-agent.service",
            "restart corral-agent.service",
        ]
        eventually(lambda: [one for one in machines(world) if one["state"] == "up"])
        if shutil.which("systemd-analyze"):
            unit = host.folder / "corral-agent.service"
            shutil.copy(host.folder / "unit", unit)
            checked = subprocess.run(
                ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
            )
            assert checked.returncode == 0, checked.stderr
            assert "corral-agent.service" not in checked.stderr
    finally:
        done = host.shell(SCRIPT, *host.flags, "--uninstall", before=where)
    assert done.returncode == 0, done.stderr
    assert "stop corral-agent.service" in calls.read_text()
    assert list(units.iterdir()) == []
    eventually(lambda: not StateFolder(host.state).held())
