"""Agents' frames to the domain's words and back; what a machine's root may send ends here (spec 60, line 8).

Decoded by msgspec straight into the protocol's dataclasses. Text is cut and freed of NUL, which
PostgreSQL keeps nowhere; numbers are held to what every database keeps. A frame that is not
what the protocol says is a `BadFrame`, and ends that session only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from corral.domain import allocations, data_location, faults, ids, inventory, updates
from corral.domain import sessions as domain
from corral.domain.resources import Resources
from corral.protocol import data_location as wire_data
from corral.protocol import gpu_faults as wire_faults
from corral.protocol import messages as wire
from corral.protocol import updates as wire_updates
from corral.server.artefact import ARTEFACT_FOLDER, Artefact

LOG_LINE, MESSAGE, TAIL, SHORT = 2_000, 1_000, 64 * 1024, 300
MAX_ALLOCATIONS, MAX_LOG_LINES, MAX_ITEMS = 1_000, 1_000, 256
INT_MAX = 2**31 - 1
EXACT_MAX = 2**53
"""Numbers up to here are whole in every JSON reader, and kept by every database."""
_FACTS = (
    "arch",
    "os",
    "kernel",
    "cpu_model",
    "runtime",
    "storage_quota",
    "driver_version",
    "cuda_version",
    "gpu_probe",
)
"""What of an inventory is kept for people as it is said."""


class BadFrame(ValueError):
    """Not what the protocol says; the message is for whoever looks after the agent."""


class _Envelope(msgspec.Struct):
    type: str
    body: msgspec.Raw = msgspec.Raw(b"{}")


_envelope = msgspec.json.Decoder(_Envelope)
_bodies = {kind: msgspec.json.Decoder(shape) for kind, shape in wire.AGENT_MESSAGES.items()}
_encoder = msgspec.json.Encoder()


def decode(frame: str | bytes) -> object | None:
    """Return the frame's message; None for a type this release does not know. Errors: `BadFrame`."""
    try:
        envelope = _envelope.decode(frame)
        decoder = _bodies.get(envelope.type)
        return None if decoder is None else decoder.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise BadFrame(f"the frame cannot be read: {error}"[:SHORT]) from error


def encode(kind: str, body: object) -> str:
    return _encoder.encode({"type": kind, "body": body}).decode()


def hello(said: wire.Hello) -> domain.Hello:
    if said.auth_scheme != "bearer" or not said.instance:
        raise BadFrame("hello needs the auth_scheme 'bearer' and an instance")
    return domain.Hello(
        _number(said.protocol),
        _text(said.release, 40),
        _text(said.instance, 64),
        _text(said.boot_id, 64),
        max(0, min(said.pid, EXACT_MAX)),
        _text(said.incarnation, 64),
    )


def report(said: wire.Report) -> domain.Report:
    if len(said.allocations) > MAX_ALLOCATIONS:
        raise BadFrame(f"more than {MAX_ALLOCATIONS} allocations in one report")
    seen, unread = _allocations(said.allocations)
    conditions = [
        inventory.Condition(_text(c.kind, 60), _text(c.message, MESSAGE), c.blocking)
        for c in said.conditions[:MAX_ITEMS]
    ]
    return domain.Report(
        _text(said.release, 40),
        _text(said.inventory_digest, 64),
        None if said.inventory is None else _inventory(said.inventory, said.inventory_digest),
        [*unread, *conditions],
        seen,
        {one.id for one in said.allocations} - {one.id for one in seen},
        data_location=_data_location(said.data_location),
        update=_update(said.update),
        boot_id=_text(said.boot_id, 64),
        kernel_lines=[(line.seq, _text(line.text, faults.MAX_EVIDENCE)) for line in _new_lines(said.kernel_lines)],
    )


def running_in(said: wire.Report) -> frozenset[str]:
    return frozenset(one.id for one in said.allocations if one.state is wire.AllocationState.RUNNING)


def disk_free(said: Mapping[str, int]) -> dict[str, int]:
    return {mount[:SHORT]: _number(free) for mount, free in itertools.islice(said.items(), MAX_ITEMS)}


def has_ends(said: wire.Report) -> bool:
    """Whether it speaks of an end, which is said again until it is confirmed that it is stored."""
    return any(one.state in (wire.AllocationState.GONE, wire.AllocationState.FAILED) for one in said.allocations)


def fingerprint(said: wire.Report) -> int:
    """What two reports have in common that say the same: everything but sequence and telemetry."""
    parts = (said.release, said.boot_id, said.pid, said.inventory_digest, said.conditions, said.allocations)
    return hash((*parts, said.data_location, said.update))


def fault_cleared(said: wire_faults.FaultCleared) -> faults.Acknowledged:
    counters = None if said.health is None else _counters(said.health)
    return faults.Acknowledged(_text(said.boot_id, 64), max(-1, min(said.kernel_seq, EXACT_MAX)), counters)


def _new_lines(said: Sequence[wire_faults.KernelLine]) -> list[wire_faults.KernelLine]:
    """Return the lines that are read, by their numbers; one out of range means nothing."""
    able = [line for line in said[: faults.MAX_LINES] if 0 <= line.seq <= EXACT_MAX]
    return sorted(able, key=lambda line: line.seq)


def described(said: wire.Described) -> list[allocations.Desired]:
    if len(said.allocations) > MAX_ALLOCATIONS:
        raise BadFrame(f"more than {MAX_ALLOCATIONS} allocations described")
    return [_described(one) for one in said.allocations]


def desired(works: Iterable[allocations.Desired], location: data_location.Wanted | None) -> wire.Desired:
    return wire.Desired(
        tuple(
            wire.DesiredAllocation(
                work.id,
                work.generation,
                work.stop,
                work.kind,
                work.org,
                work.workspace,
                work.workload,
                work.name,
                work.image,
                tuple(work.gpus),
                work.resources.vcpu,
                work.resources.ram_mib,
                work.resources.storage_mib,
                env=dict(work.env),
                authorized_keys=tuple(work.authorized_keys),
                seconds_left=work.seconds_left,
                drives=tuple(work.drives),
            )
            for work in works
        ),
        None if location is None else _told_location(location),
    )


def _told_location(wanted: data_location.Wanted) -> wire_data.DataLocation:
    chosen = wanted.chosen
    if chosen is None:
        return wire_data.DataLocation(wanted.generation)
    return wire_data.DataLocation(wanted.generation, chosen.path, chosen.mount, chosen.max_bytes)


def update(ask: updates.Ask, made: Artefact) -> wire_updates.Update:
    return wire_updates.Update(ask.number, ask.release, made.sha256, made.size, ARTEFACT_FOLDER)


def _update(said: wire_updates.UpdateReport | None) -> updates.Said | None:
    if said is None:
        return None
    return updates.Said(_number(said.ask), updates.State(said.state.value), _text(said.message, SHORT))


def _data_location(said: wire_data.DataLocationSeen | None) -> data_location.Seen | None:
    if said is None:
        return None
    state = data_location.State(said.state.value)
    return data_location.Seen(_number(said.generation), state, _text(said.message, SHORT), _number(said.copies))


def ack(seq: int, outcome: allocations.Outcome, need_inventory: bool, kernel_seen: int) -> wire.Ack:
    described, forgotten = tuple(outcome.describe), tuple(outcome.forget)
    return wire.Ack(seq, need_inventory, dict(outcome.log_seen), described, forgotten, kernel_seen)


def _allocations(
    said: Sequence[wire.AllocationReport],
) -> tuple[list[allocations.Report], list[inventory.Condition]]:
    """Return what can be read, and the condition that some cannot be: one hand-made label must not end every session.

    It blocks new work, because what cannot be read may hold GPUs.
    """
    seen, wrong = {}, []
    for one in said:
        try:
            seen[one.id] = _allocation(one)
        except BadFrame as error:
            wrong.append(f"{ids.shown(one.id)}: {error}")
    if not wrong:
        return list(seen.values()), []
    message = f"{len(wrong)} of its allocations cannot be read, first {wrong[0]}; look at its containers"
    return list(seen.values()), [inventory.Condition("allocation_unreadable", message, True)]


def _allocation(said: wire.AllocationReport) -> allocations.Report:
    return allocations.Report(
        _id(said.id),
        _exact(said.generation, "generation"),
        allocations.Seen(said.state.value),
        said.step.value if said.step else "",
        _text(said.message, MESSAGE),
        _texts(said.gpus, 96),
        _line(said.host_key, MESSAGE),
        _number(said.oom_kills),
        None if said.exit_code is None else max(-INT_MAX, min(said.exit_code, INT_MAX)),
        _number(said.restarts),
        [(_exact(line.n, "log line number"), _text(line.text, LOG_LINE)) for line in said.log[:MAX_LOG_LINES]],
        _text(said.log_tail[-TAIL:], TAIL),
    )


def _inventory(said: wire.Inventory, digest: str) -> inventory.Inventory:
    facts: dict[str, Any] = {name: _text(getattr(said, name), SHORT) for name in _FACTS}
    facts["network_mbps"] = _number(said.network_mbps)
    facts["addresses"] = _texts(said.addresses, 64)
    facts["disks"] = [_plain(asdict(disk)) for disk in said.disks[:MAX_ITEMS] if len(disk.mount) <= SHORT]
    return inventory.Inventory(
        _text(digest, 64),
        _text(said.hostname, 255),
        _number(said.vcpus),
        _number(said.memory_mib),
        _number(said.storage_mib),
        [_gpu(gpu) for gpu in said.gpus[:MAX_ITEMS]],
        facts,
        [
            faults.Health(_text(one.vendor, 20), _text(one.uuid, 96), _counters(one))
            for one in said.gpu_health[:MAX_ITEMS]
        ],
    )


def _counters(said: wire_faults.GpuHealth) -> faults.Counters:
    def counter(number: int) -> int:
        return max(-1, min(number, EXACT_MAX))

    return faults.Counters(
        counter(said.ecc_volatile),
        counter(said.ecc_aggregate),
        said.remap_failed,
        _number(said.nvlinks),
        _number(said.nvlinks_up),
        counter(said.recovery_action),
        _number(said.unreadable_s),
        said.lost,
    )


def _gpu(said: wire.Gpu) -> inventory.Gpu:
    return inventory.Gpu(
        _text(said.vendor, 20),
        _text(said.uuid, 96),
        _text(said.slot, 32),
        _text(said.model, 100),
        _number(said.memory_mib),
        _text(said.serial, 64),
        inventory.GpuState(said.state.value),
        _text(said.detail, MESSAGE),
        _text(said.busy, MESSAGE),
    )


def _described(said: wire.DesiredAllocation) -> allocations.Desired:
    return allocations.Desired(
        _id(said.id),
        _exact(said.generation, "generation"),
        said.stop,
        _text(said.kind, 30),
        _id(said.org),
        _id(said.workspace),
        _id(said.workload),
        _text(said.name, 63),
        _text(said.image, SHORT),
        _texts(said.gpus, 96),
        Resources(len(said.gpus), _number(said.vcpu), _number(said.ram_mib), _number(said.storage_mib)),
        _texts(said.authorized_keys, 9_000),
        {_text(key, SHORT): _text(value, LOG_LINE) for key, value in list(said.env.items())[:MAX_ITEMS]},
        None if said.seconds_left is None else _number(said.seconds_left),
        _texts(said.drives, 63),
    )


def _id(text: str) -> str:
    if not ids.is_uuid(text):
        raise BadFrame("an id is not a UUID")
    return text


def _exact(number: int, what: str) -> int:
    """A number that means something by its exact value: out of range it means nothing."""
    if not 0 <= number <= EXACT_MAX:
        raise BadFrame(f"a {what} is out of range")
    return number


def _number(number: int) -> int:
    return max(0, min(number, INT_MAX))


def _text(text: str, limit: int) -> str:
    return text[:limit].replace("\0", "") if "\0" in text else text[:limit]


def _texts(texts: Sequence[str], limit: int) -> list[str]:
    return [_text(text, limit) for text in texts[:MAX_ITEMS]]


def _line(text: str, limit: int) -> str:
    """One line of printable ASCII, or nothing: it goes into headers and known-hosts files."""
    return text if len(text) <= limit and text.isascii() and text.isprintable() else ""


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _text(value, SHORT) if isinstance(value, str) else value if isinstance(value, bool) else _number(value)
        for key, value in values.items()
    }
