"""An allocation's sshd: its host key (made here, kept outside the image), its config, who may log in.

The folder is mounted read-only into the container at /.corral-ssh; its files are replaced
whole, so a key that is attached or detached counts from the next login on, at once. The
login is root, inside the container.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from corral.agent.drivers import toolbox
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import disk_error, make_folder, read_text, run, write_atomic

MOUNT = "/.corral-ssh"
PRIVSEP_DIR = "/run/sshd"
"""Empty folder that sshd wants; mounted as a tmpfs, so that no image and no tenant can lack it."""

_CONFIG = f"""\
HostKey {MOUNT}/host_key
AuthorizedKeysFile {MOUNT}/authorized_keys
PermitUserEnvironment yes
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
PrintMotd no
UseDNS no
AcceptEnv LANG LC_*
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
X11Forwarding no
Subsystem sftp {toolbox.MOUNT}/bin/sftp-server
"""

_NOT_FOR_SESSIONS = {"HOME", "USER", "LOGNAME", "SHELL", "TERM", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "MAIL"}
"""sshd sets these itself."""


class SshFolder:
    """The `ssh` folder of one allocation."""

    def __init__(self, folder: Path) -> None:
        self.private = folder / "ssh"
        self.mounted = self.private / "etc"

    def prepare(self) -> str:
        """Have host key and config there; return the public host key line."""
        make_folder(self.private)
        make_folder(self.mounted, 0o755)
        key = self.mounted / "host_key"
        if not key.exists():
            self._make_key(key)
        if read_text(self.mounted / "sshd_config") != _CONFIG:
            write_atomic(self.mounted / "sshd_config", _CONFIG.encode(), 0o644)
        return self.host_key()

    def host_key(self) -> str:
        """Return "ssh-ed25519 AAAA…", "" before there is one."""
        return " ".join(read_text(self.mounted / "host_key.pub").split()[:2])

    def _make_key(self, key: Path) -> None:
        part = self.private / "part"
        shutil.rmtree(part, ignore_errors=True)
        make_folder(part)
        try:
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(part / "key")])
            # The private half last: where it stands, the public half stands too.
            (part / "key.pub").replace(key.with_name("host_key.pub"))
            write_atomic(key, (part / "key").read_bytes())
        except OSError as error:
            raise disk_error("making the host key", error) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def write_keys(self, keys: Iterable[str], environment: Mapping[str, str]) -> None:
        """Replace who may log in, and the environment their sessions see."""
        options = ",".join(f'environment="{name}={_quote(value)}"' for name, value in _for_sessions(environment))
        lines = [f"{options} {key.strip()}".strip() for key in keys if key.strip() and "\n" not in key.strip()]
        write_atomic(self.mounted / "authorized_keys", "".join(line + "\n" for line in lines).encode())


def _for_sessions(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what can be handed to a session: a line break cannot stand in a key's line, nor a backslash at its end."""
    return [
        (name, value)
        for name, value in environment.items()
        if name not in _NOT_FOR_SESSIONS
        and name.replace("_", "a").isalnum()
        and name.isascii()
        and not {"\n", "\r", "\0"} & set(value)
        and not value.endswith("\\")
    ]


def _quote(value: str) -> str:
    return value.replace('"', '\\"')


# -- accounts of the image ----------------------------------------------------------------


def prepare_accounts(rootfs: Path) -> None:
    """Make the image's accounts fit for sshd: root with a shell that is there and not locked, and user sshd.

    What lies in the root file system is the tenant's: nothing outside it must be reached
    through a symbolic link. To be called only while no process of the container lives.
    """
    root = os.open(rootfs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        etc = _open_folder(root, "etc")
        try:
            passwd = _with_accounts(_read(etc, "passwd"), rootfs)
            _replace(etc, "passwd", passwd, 0o644)
            shadow = _read(etc, "shadow")
            if shadow:
                _replace(etc, "shadow", _unlocked(shadow), 0o640)
        finally:
            os.close(etc)
    except OSError as error:
        raise disk_error("preparing the image's /etc/passwd for sshd", error) from error
    finally:
        os.close(root)


def _open_folder(parent: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise DriverError(f"the image's /{name} is not a folder; use an image with a plain /{name}") from error


def _read(folder: int, name: str) -> str:
    """Return the text of a plain file, "" when it is missing or anything else."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return ""
    with os.fdopen(fd, encoding="utf-8", errors="surrogateescape") as file:
        return file.read(1 << 20) if stat.S_ISREG(os.fstat(fd).st_mode) else ""


def _replace(folder: int, name: str, text: str, mode: int) -> None:
    if _read(folder, name) == text:
        return
    part = f".{name}.corral"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)


def _with_accounts(passwd: str, rootfs: Path) -> str:
    lines = [line for line in passwd.splitlines() if line]
    users = {line.split(":")[0] for line in lines}
    lines = [_with_shell(line, rootfs) if line.startswith("root:") else line for line in lines]
    if "root" not in users:
        lines.insert(0, f"root:*:0:0:root:/root:{_shell('/bin/sh', rootfs)}")
    if "sshd" not in users:
        lines.append(f"sshd:*:65533:65534::{PRIVSEP_DIR}:/sbin/nologin")
    return "\n".join(lines) + "\n"


def _with_shell(line: str, rootfs: Path) -> str:
    fields = (line.split(":") + [""] * 7)[:7]
    fields[1] = "*" if fields[1].startswith("!") else fields[1]
    fields[6] = _shell(fields[6] or "/bin/sh", rootfs)
    return ":".join(fields)


def _shell(wanted: str, rootfs: Path) -> str:
    """Return the first shell that is there: the image's own, else the toolbox's."""
    for shell in (wanted, "/bin/bash", "/bin/sh"):
        if shell.startswith(toolbox.MOUNT) or is_inside(rootfs, shell):
            return shell
    return toolbox.SHELL


def is_inside(rootfs: Path, path: str) -> bool:
    """Tell whether `path` is a file for someone whose root is `rootfs`: links are followed as seen from there."""
    try:
        return _is_inside(rootfs, path)
    except (OSError, ValueError):
        return False  # no file has such a name


def _is_inside(rootfs: Path, path: str) -> bool:
    parts, done = [p for p in path.split("/") if p][::-1], Path()
    for _ in range(200):
        if not parts:
            return (rootfs / done).is_file()
        name = parts.pop()
        if name in (".", ".."):
            done = done if name == "." else done.parent
            continue
        here = rootfs / done / name
        if here.is_symlink():
            target = str(here.readlink())
            done = Path() if target.startswith("/") else done
            parts += [p for p in target.split("/") if p][::-1]
        else:
            done = done / name
    return False


def _unlocked(shadow: str) -> str:
    """Return the shadow file with a locked root password ("!") as none ("*"): sshd refuses keys of a locked account."""
    return "".join(
        line.replace("root:!", "root:*", 1) if line.startswith("root:!") else line
        for line in shadow.splitlines(keepends=True)
    )
