"""What lies in the agent's image store below the images: sizes while a pull goes on, and what a broken one left.

Podman keeps the layers that a broken pull had brought, and no image's removal takes them
along. It has no call to remove a layer either; so they are made an image, which is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.agent.drivers.host import read_text, remove_tree

LABEL_LEFTOVER = "corral.leftover"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_Row = Mapping[str, Any]


def size_mib(store: Path) -> int:
    """Return what all layers in a store take, each counted once."""
    return sum(_size(row) for row in _rows(store, "layers")) >> 20


def layer_ids(store: Path) -> frozenset[str]:
    return frozenset(row["id"] for row in _rows(store, "layers"))


def taken_mib(store: Path, but: frozenset[str] = frozenset()) -> int:
    """Return what layers take, and what pulls that go on have brought so far; without the layers in `but`."""
    done = {row["id"]: _size(row) for row in _rows(store, "layers") if _size(row)}
    partial = sum(_tree(path) for path in _folders(store / "overlay") if path.name not in done and path.name not in but)
    whole = sum(size for layer, size in done.items() if layer not in but)
    return (whole + partial + _tree(store / "tmp")) >> 20


def free_mib(store: Path) -> int:
    """Return the free space of the store's file system."""
    status = os.statvfs(store)
    return status.f_bavail * status.f_frsize >> 20


def downloads(store: Path) -> list[Path]:
    """Return the folders that pulls keep what they download in; each removes its own as it ends."""
    return [path for path in _folders(store / "tmp") if path.name.startswith("storage")]


def remove_downloads(store: Path) -> None:
    for path in downloads(store):
        remove_tree(path)


def leftovers(store: Path) -> list[tuple[_Row, ...]]:
    """Return the layers that no image or container stands on, as chains from the lowest to each top."""
    # One that a killed Podman was unpacking has no digest yet; Podman removes it itself, with its next change.
    rows = {row["id"]: row for row in _rows(store, "layers") if row.get("diff-digest")}
    used: set[str] = set()
    for row in (*_rows(store, "images"), *_rows(store, "containers")):
        for top in (row.get("layer", ""), *(row.get("mapped-layers") or ())):
            used.update(each["id"] for each in _chain(rows, top))
    parents = {row.get("parent") for row in rows.values()}
    return [_chain(rows, layer) for layer in rows if layer not in used and layer not in parents]


def image_of(chain: Sequence[_Row], archive: Path) -> None:
    """Write an image that stands on layers in the store, without their content: Podman takes what it has."""
    digests = [str(row["diff-digest"]) for row in chain]
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {LABEL_LEFTOVER: "yes"}},
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    below = [
        {"mediaType": _LAYER, "digest": digest, "size": _size(row)} for digest, row in zip(digests, chain, strict=True)
    ]
    manifest = _json({"schemaVersion": 2, "config": _named(_CONFIG, config), "layers": below})
    index = _json({"schemaVersion": 2, "manifests": [_named(_MANIFEST, manifest)]})
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (config, manifest):
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)


def _rows(store: Path, kind: str) -> list[_Row]:
    rows: list[_Row] = json.loads(read_text(store / f"overlay-{kind}/{kind}.json") or "[]")
    return rows


def _size(row: _Row) -> int:
    return int(row.get("diff-size") or 0)


def _chain(rows: Mapping[str, _Row], top: str) -> tuple[_Row, ...]:
    chain = []
    while top in rows:
        chain.append(rows[top])
        top = str(rows[top].get("parent", ""))
    return tuple(reversed(chain))


def _folders(path: Path) -> list[Path]:
    try:
        return [each for each in path.iterdir() if each.is_dir()]
    except FileNotFoundError:
        return []


def _tree(path: Path) -> int:
    """Return the bytes that a folder takes; what goes away meanwhile counts nothing."""
    return sum(_bytes(file) for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


def _bytes(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.lstat().st_blocks * 512
    return 0


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _named(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
