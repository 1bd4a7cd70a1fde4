"""Spec 40, "GPUs and their health": missing, replaced, conflict, order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corral.agent.inventory import identity, pci
from corral.agent.inventory.probe_messages import Device
from corral.protocol.messages import Gpu, GpuState

SLOTS = [f"0000:{bus:02x}:00.0" for bus in range(0x0E, 0x14)]
UUIDS = [f"GPU-{letter}" for letter in "abcdefgh"]


def gpu(uuid: str, slot: str) -> Gpu:
    return Gpu("nvidia", uuid, slot=slot, model="H100", memory_mib=81559)


def device(index: int, uuid: str, slot: str, error: str = "") -> Device:
    return Device(index, uuid=uuid, slot=slot, error=error)


@st.composite
def known_gpus(draw: st.DrawFn) -> tuple[Gpu, ...]:
    uuids = draw(st.lists(st.sampled_from(UUIDS), unique=True, max_size=6))
    return tuple(gpu(uuid, draw(st.sampled_from(["", *SLOTS]))) for uuid in uuids)


@st.composite
def seen_devices(draw: st.DrawFn) -> list[Device]:
    slots = draw(st.lists(st.sampled_from(SLOTS), unique=True, max_size=6))
    devices = []
    for index, slot in enumerate(slots):
        uuid = draw(st.sampled_from(["", *UUIDS]))
        error = draw(st.sampled_from(["", "GPU is lost"])) if uuid else "GPU is lost"
        devices.append(device(index, uuid, slot if uuid or draw(st.booleans()) else "", error))
    return devices


def states(gpus: tuple[Gpu, ...]) -> dict[str, GpuState]:
    return {g.uuid: g.state for g in gpus}


def test_a_gpu_that_is_not_seen_any_more_stays_as_missing() -> None:
    now = identity.fold([gpu("GPU-a", SLOTS[0]), gpu("GPU-b", SLOTS[1])], [device(0, "GPU-a", SLOTS[0])])
    assert states(now) == {"GPU-a": GpuState.OK, "GPU-b": GpuState.MISSING}
    assert now[1].model == "H100"
    assert SLOTS[1] in now[1].detail


def test_another_readable_uuid_in_the_slot_replaces_the_gpu() -> None:
    now = identity.fold([gpu("GPU-a", SLOTS[0])], [device(0, "GPU-b", SLOTS[0])])
    assert states(now) == {"GPU-b": GpuState.OK}


def test_an_unreadable_gpu_in_the_slot_replaces_nothing() -> None:
    now = identity.fold([gpu("GPU-a", SLOTS[0])], [device(0, "GPU-b", SLOTS[0], "GPU is lost")])
    assert states(now) == {"GPU-a": GpuState.MISSING, "GPU-b": GpuState.UNREADABLE}


def test_a_gpu_moved_to_another_slot_is_not_missing() -> None:
    seen = [device(0, "GPU-b", SLOTS[0]), device(1, "GPU-a", SLOTS[1])]
    now = identity.fold([gpu("GPU-a", SLOTS[0]), gpu("GPU-b", SLOTS[1])], seen)
    assert [(g.uuid, g.slot, g.state) for g in now] == [
        ("GPU-b", SLOTS[0], GpuState.OK),
        ("GPU-a", SLOTS[1], GpuState.OK),
    ]


def test_a_gpu_that_comes_back_is_ok_again() -> None:
    seen = [device(0, "GPU-a", SLOTS[0])]
    missing = identity.fold([gpu("GPU-a", SLOTS[0])], [])
    assert states(missing) == {"GPU-a": GpuState.MISSING}
    assert states(identity.fold(identity.lasting(missing), seen)) == {"GPU-a": GpuState.OK}


def test_two_devices_with_one_uuid_are_one_conflict_that_names_both_slots() -> None:
    seen = [device(0, "GPU-a", SLOTS[3]), device(1, "GPU-a", SLOTS[1]), device(2, "GPU-b", SLOTS[2])]
    now = identity.fold([], seen)
    assert states(now) == {"GPU-a": GpuState.CONFLICT, "GPU-b": GpuState.OK}
    assert SLOTS[1] in now[0].detail
    assert SLOTS[3] in now[0].detail


def test_a_silent_gpu_is_told_from_a_missing_one_by_its_slot() -> None:
    known = [gpu("GPU-a", SLOTS[0]), gpu("GPU-b", SLOTS[1])]
    now = identity.fold(known, [device(0, "", SLOTS[1], "GPU is lost")])
    assert states(now) == {"GPU-a": GpuState.MISSING, "GPU-b": GpuState.UNREADABLE}


def test_a_silent_gpu_without_a_slot_is_one_of_those_known() -> None:
    known = [gpu("GPU-a", SLOTS[0]), gpu("GPU-b", SLOTS[1])]
    now = identity.fold(known, [device(0, "GPU-a", SLOTS[0]), device(1, "", "", "Unknown Error")])
    assert states(now) == {"GPU-a": GpuState.OK, "GPU-b": GpuState.UNREADABLE}
    assert now[1].detail == "Unknown Error"


def test_a_gpu_that_never_told_its_uuid_is_listed_but_not_remembered() -> None:
    now = identity.fold([], [device(0, "", SLOTS[0], "GPU is lost")])
    assert [(g.slot, g.state) for g in now] == [(SLOTS[0], GpuState.UNREADABLE)]
    assert now[0].uuid
    assert identity.lasting(now) == ()


def test_no_data_makes_every_known_gpu_unreadable_and_none_missing() -> None:
    known = (gpu("GPU-b", SLOTS[1]), gpu("GPU-a", SLOTS[0]))
    now = identity.unreadable(known, "no health data")
    assert [(g.uuid, g.state, g.detail) for g in now] == [
        ("GPU-a", GpuState.UNREADABLE, "no health data"),
        ("GPU-b", GpuState.UNREADABLE, "no health data"),
    ]


def test_a_gpu_in_mig_mode_is_healthy_but_not_to_be_given_away() -> None:
    (now,) = identity.fold([], [replace(device(0, "GPU-a", SLOTS[0]), mig=True)])
    assert now.state is GpuState.OK
    assert "MIG mode" in now.detail
    assert now.busy


def test_control_characters_of_a_model_do_not_reach_a_terminal() -> None:
    (now,) = identity.fold([], [replace(device(0, "GPU-a", SLOTS[0]), model="H100\x1b[2J")])
    assert now.model == "H100\\x1b[2J"


@given(known_gpus(), seen_devices())
def test_each_readable_gpu_with_a_uuid_of_its_own_is_ok_whatever_the_others_are(
    known: tuple[Gpu, ...], seen: list[Device]
) -> None:
    now = states(identity.fold(known, seen))
    claimed = [d.uuid for d in seen if d.uuid]
    for one in seen:
        if one.uuid and claimed.count(one.uuid) == 1:
            assert now[one.uuid] is (GpuState.UNREADABLE if one.error else GpuState.OK)


@given(known_gpus(), seen_devices())
def test_a_known_gpu_leaves_the_list_only_when_replaced(known: tuple[Gpu, ...], seen: list[Device]) -> None:
    now = states(identity.fold(known, seen))
    for before in known:
        nowhere = all(d.uuid != before.uuid for d in seen)
        taken = any(d.slot == before.slot and d.uuid and not d.error for d in seen)
        assert (before.uuid not in now) == (nowhere and taken)


@given(known_gpus(), seen_devices())
def test_no_gpu_is_listed_twice_and_the_order_is_that_of_the_pci_bus(
    known: tuple[Gpu, ...], seen: list[Device]
) -> None:
    now = identity.fold(known, seen)
    assert len({g.uuid for g in now}) == len(now)
    assert [pci.order(g.slot) for g in now] == sorted(pci.order(g.slot) for g in now)


@given(known_gpus(), seen_devices())
def test_seeing_the_same_again_changes_nothing(known: tuple[Gpu, ...], seen: list[Device]) -> None:
    once = identity.fold(known, seen)
    again = identity.fold(identity.lasting(once), seen)
    if all(d.uuid or d.slot for d in seen):  # a device without both is matched by order, which may tell more later
        assert states(again) == states(once)
    assert identity.lasting(identity.unreadable(identity.lasting(once), "")) == identity.lasting(once)
