"""What sshd needs of an image's accounts, written without ever leaving the image; keys and environment of sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.agent.drivers import toolbox
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.sshd import SshFolder, is_inside, prepare_accounts


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin/busybox").write_text("")
    (root / "bin/sh").symlink_to("busybox")
    return root


def passwd(image: Path) -> dict[str, list[str]]:
    return {line.split(":")[0]: line.split(":") for line in (image / "etc/passwd").read_text().splitlines()}


def test_an_image_without_accounts_gets_root_and_sshd(image: Path) -> None:
    prepare_accounts(image)
    assert passwd(image)["root"][2:] == ["0", "0", "root", "/root", "/bin/sh"]
    assert "sshd" in passwd(image)


def test_accounts_of_the_image_stay_as_they_are(image: Path) -> None:
    text = "root:x:0:0:root:/root:/bin/sh\nsshd:x:74:74::/run/sshd:/sbin/nologin\nme:x:1000:1000::/home/me:/bin/sh\n"
    (image / "etc/passwd").write_text(text)
    prepare_accounts(image)
    assert (image / "etc/passwd").read_text() == text


def test_a_shell_that_is_not_there_is_replaced_by_one_that_is(image: Path) -> None:
    (image / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/zsh\n")
    prepare_accounts(image)
    assert passwd(image)["root"][6] == "/bin/sh"
    (image / "bin/sh").unlink()
    prepare_accounts(image)
    assert passwd(image)["root"][6] == toolbox.SHELL


def test_a_locked_root_can_log_in_by_key(image: Path) -> None:
    (image / "etc/shadow").write_text("root:!locked::0:99999:7:::\nme:!:::::::\n")
    prepare_accounts(image)
    assert (image / "etc/shadow").read_text() == "root:*locked::0:99999:7:::\nme:!:::::::\n"


@pytest.mark.parametrize("name", ["passwd", "shadow"])
def test_a_link_out_of_the_image_is_never_followed(image: Path, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("root:!host:\n")
    (image / "etc" / name).symlink_to(precious)
    prepare_accounts(image)
    assert precious.read_text() == "root:!host:\n"


def test_an_etc_that_leads_out_of_the_image_is_refused(image: Path, tmp_path: Path) -> None:
    (tmp_path / "host-etc").mkdir()
    (image / "etc").rmdir()
    (image / "etc").symlink_to(tmp_path / "host-etc")
    with pytest.raises(DriverError, match="not a folder"):
        prepare_accounts(image)
    assert list((tmp_path / "host-etc").iterdir()) == []


def test_a_pipe_in_place_of_a_file_does_not_hang(image: Path) -> None:
    os.mkfifo(image / "etc/passwd")
    prepare_accounts(image)
    assert "sshd" in passwd(image)


@pytest.mark.parametrize(
    ("link", "inside"),
    [
        ("busybox", True),
        ("/bin/busybox", True),
        ("../bin/busybox", True),
        ("../../../bin/busybox", True),
        ("sh", False),
    ],
)
def test_links_are_followed_as_seen_from_inside(image: Path, link: str, inside: bool) -> None:
    (image / "bin/x").symlink_to(link)
    if link == "sh":
        (image / "bin/sh").unlink()
        (image / "bin/sh").symlink_to("x")
    assert is_inside(image, "/bin/x") is inside


def test_a_file_of_the_host_is_not_inside(image: Path) -> None:
    (image / "bin/x").symlink_to("/etc/passwd")
    assert not is_inside(image, "/bin/x")


@pytest.mark.parametrize("shell", ["/bin/\0", "/" + "x" * 300])
def test_a_shell_that_no_file_can_have_is_replaced(image: Path, shell: str) -> None:
    (image / "etc/passwd").write_text(f"root:x:0:0:root:/root:{shell}\n")
    prepare_accounts(image)
    assert passwd(image)["root"][6] == "/bin/sh"


@pytest.mark.parametrize("name", ["passwd", "group"])
def test_a_name_the_kernel_cannot_take_is_not_inside(image: Path, name: str) -> None:
    assert not is_inside(image, f"/etc/{name}\0")


def test_the_environment_stands_quoted_before_each_key(tmp_path: Path) -> None:
    folder = SshFolder(tmp_path)
    folder.prepare()
    folder.write_keys(
        ["ssh-ed25519 AAAA one", " ssh-ed25519 BBBB two\n"],
        {"A": 'x "y"', "HOME": "/elsewhere", "BAD-NAME": "1", "LINES": "a\nb", "É": "1", "END": "C:\\"},
    )
    lines = (folder.mounted / "authorized_keys").read_text().splitlines()
    assert lines == [
        'environment="A=x \\"y\\"" ssh-ed25519 AAAA one',
        'environment="A=x \\"y\\"" ssh-ed25519 BBBB two',
    ]


def test_the_host_key_is_made_once_and_kept(tmp_path: Path) -> None:
    first = SshFolder(tmp_path).prepare()
    assert first.startswith("ssh-ed25519 AAAA")
    assert SshFolder(tmp_path).prepare() == first
