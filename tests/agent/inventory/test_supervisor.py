"""Spec 40, "GPUs and their health": a probe that hangs or dies. Real probe processes, a fake driver."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.agent.inventory.gpus import GpuProbe
from corral.agent.inventory.probe_messages import ProbeStatus
from corral.agent.inventory.supervisor import Patience, ProbeSupervisor
from corral.protocol.messages import GpuState
from tests.agent.inventory.conftest import Clock, wait_until
from tests.fake_nvml import FakeGpu, FakeNvml, fake_gpu

Make = Callable[[], GpuProbe]
MALFORMED = "failed: the GPU probe's answer is malformed"
SHORT_S = 0.3
"""A deadline for calls that will not answer."""
HEALTHY = [fake_gpu(0), fake_gpu(1)]
HANGING = [fake_gpu(0), fake_gpu(1, hang_DeviceGetMemoryInfo=1)]
IN_STATE_D = [fake_gpu(0), fake_gpu(1, hang_DeviceGetMemoryInfo=1, deaf=1)]


def kinds(probe: GpuProbe, deadline_s: float = SHORT_S) -> list[str]:
    return [condition.kind for condition in probe.read(deadline_s).conditions]


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text("utf-8").rpartition(")")[2].split()[0] == "Z"


def stuck(fake: FakeNvml, probe: GpuProbe, how: list[FakeGpu] | None = None) -> int:
    """Bring a probe that has answered once into a call that hangs; return its pid."""
    fake.write(HEALTHY)
    assert probe.read().status == "ok"
    fake.write(how or HANGING)
    assert kinds(probe) == ["gpu_probe_stuck"]
    assert probe.pid is not None
    return probe.pid


def test_a_probe_that_hangs_is_reported_and_no_second_one_started(fake: FakeNvml, make_probe: Make) -> None:
    probe = make_probe()
    pid = stuck(fake, probe)
    readings = [probe.read(SHORT_S) for _ in range(3)]
    assert len(set(map(str, readings))) == 1, "what is said stays the same, so that it is told once"
    assert readings[0].status == f"stuck: process {pid} does not come back from the NVIDIA driver"
    assert readings[0].conditions[0].blocking
    assert [gpu.state for gpu in readings[0].gpus] == [GpuState.UNREADABLE] * 2
    assert readings[0].telemetry == ()
    assert (probe.pid, fake.sessions()) == (pid, [pid])


def test_a_probe_that_comes_back_is_asked_anew(fake: FakeNvml, make_probe: Make) -> None:
    probe = make_probe()
    pid = stuck(fake, probe)
    fake.write([fake_gpu(0), fake_gpu(1, temp=77)])
    wait_until(lambda: probe.read().status == "ok", "the probe to answer")
    reading = probe.read()
    assert [gpu.state for gpu in reading.gpus] == [GpuState.OK] * 2
    assert reading.telemetry[1].temperature_c == 77
    assert (probe.pid, fake.sessions()) == (pid, [pid])


def test_a_stuck_probe_is_asked_to_end_and_replaced_when_it_has_ended(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    probe = make_probe()
    first = stuck(fake, probe)
    clock.advance(10.0)
    assert kinds(probe) == ["gpu_probe_stuck"]  # its input is closed now
    fake.write(HEALTHY)
    wait_until(lambda: gone(first), "the probe to end by itself")
    assert probe.read().status == "ok"
    assert fake.sessions() == [first, probe.pid]
    assert probe.pid != first


def test_a_stuck_probe_that_does_not_end_when_asked_gets_sigterm(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    probe = make_probe()
    first = stuck(fake, probe)
    clock.advance(20.0)
    assert kinds(probe) == ["gpu_probe_stuck"]
    wait_until(lambda: gone(first), "SIGTERM to end the probe")
    fake.write(HEALTHY)
    assert probe.read().status == "ok"
    assert len(fake.sessions()) == 2


def test_a_probe_in_the_kernel_is_left_alone_and_looked_after_later(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    probe = make_probe()
    first = stuck(fake, probe, IN_STATE_D)
    for _ in range(3):
        clock.advance(1000.0)
        assert kinds(probe) == ["gpu_probe_stuck"]
        assert not gone(first)
    assert fake.sessions() == [first]
    fake.write(HEALTHY)
    wait_until(lambda: gone(first), "the SIGTERM that waits for it to end it")
    assert probe.read().status == "ok"


def test_a_probe_left_by_the_agent_before_is_seen_and_no_second_one_started(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    before = make_probe()
    left = stuck(fake, before, IN_STATE_D)
    after = make_probe()
    reading = after.read(0.0)
    assert reading.status.startswith(f"stuck: process {left}, left by the agent before this one")
    assert [condition.kind for condition in reading.conditions] == ["gpu_probe_stuck"]
    assert [gpu.state for gpu in reading.gpus] == [GpuState.UNREADABLE] * 2
    clock.advance(20.0)
    after.read(0.0)
    fake.write(HEALTHY)
    wait_until(lambda: gone(left), "the SIGTERM that waits for it to end it")
    assert after.read().status == "ok"
    assert len(fake.sessions()) == 2


def test_a_pid_used_again_by_another_process_is_no_probe(tmp_path: Path, fake: FakeNvml, make_probe: Make) -> None:
    (tmp_path / "nvml-probe.pid").write_text(f'{{"pid": {os.getpid()}, "started": 1}}', "utf-8")
    fake.write(HEALTHY)
    assert make_probe().read().status == "ok"


def test_a_slow_first_initialisation_is_not_a_stuck_probe(tmp_path: Path, fake: FakeNvml) -> None:
    fake.write(HEALTHY, {"hang.Init": 1})
    clock = Clock()
    probe = GpuProbe(tmp_path, env=fake.env(), patience=Patience(start_s=60.0), clock=clock)
    try:
        reading = probe.read(SHORT_S)
        assert (reading.status, reading.conditions) == ("starting: the driver is initialising its GPUs", ())
        clock.advance(59.0)
        assert kinds(probe) == []
        clock.advance(1.0)
        assert kinds(probe) == ["gpu_probe_stuck"]
        fake.write(HEALTHY)
        wait_until(lambda: probe.read().status == "ok", "the driver to be ready")
    finally:
        fake.write(HEALTHY)
        probe.close()


def test_a_late_answer_of_a_probe_that_is_starting_is_used(tmp_path: Path, fake: FakeNvml) -> None:
    fake.write(HEALTHY, {"hang.Init": 1})
    probe = GpuProbe(tmp_path, env=fake.env())
    try:
        assert probe.read(SHORT_S).status.startswith("starting: ")
        fake.write(HEALTHY)
        assert probe.read().status == "ok"
        assert fake.sessions() == [probe.pid]
    finally:
        fake.write(HEALTHY)
        probe.close()


def test_a_killed_probe_is_started_again_at_once(fake: FakeNvml, make_probe: Make) -> None:
    fake.write(HEALTHY)
    probe = make_probe()
    probe.read()
    first = probe.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: gone(first), "the probe to die")
    reading = probe.read()
    assert (reading.status, reading.conditions) == ("ok", ())
    assert fake.sessions() == [first, probe.pid]


def test_a_driver_that_crashes_its_caller_is_reported_and_asked_less_and_less(
    fake: FakeNvml, make_probe: Make, clock: Clock
) -> None:
    fake.write(HEALTHY)
    probe = make_probe()
    probe.read()
    fake.write(HEALTHY, {"crash.DeviceGetCount": 1})
    reading = probe.read()
    assert reading.status == "failed: the GPU probe dies: signal 11 (SIGSEGV)"
    assert [gpu.state for gpu in reading.gpus] == [GpuState.UNREADABLE] * 2
    assert [(c.kind, c.blocking) for c in reading.conditions] == [("gpu_probe_failed", False)]
    sessions = len(fake.sessions())
    for pause in (10.0, 20.0, 40.0, 60.0, 60.0):
        clock.advance(pause - 1.0)
        assert probe.read() == reading
        assert len(fake.sessions()) == sessions, "not before its time"
        clock.advance(1.0)
        probe.read()
        sessions += 1
        assert len(fake.sessions()) == sessions
    fake.write(HEALTHY)
    clock.advance(60.0)
    assert probe.read().status == "ok"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("raise SystemExit('no such module')", "failed: the GPU probe dies: exit status 1: no such module"),
        ("input(); print('hello')", MALFORMED),
        ('input(); print(\'{"type":"probe","body":{"status":7}}\')', MALFORMED),
        ("input(); print('x' * 5_000_000)", MALFORMED),
        ("import sys; input(); sys.stderr.write('\\x1b[2J\\n'); sys.exit(3)", "exit status 3: \\x1b[2J"),
    ],
)
def test_a_broken_probe_is_a_failure_not_an_error(program: str, says: str, tmp_path: Path) -> None:
    probe = GpuProbe(tmp_path, argv=[sys.executable, "-c", program])
    try:
        assert says in probe.read().status
    finally:
        probe.close()


def test_a_probe_that_cannot_be_started_is_a_failure_not_an_error(tmp_path: Path) -> None:
    probe = GpuProbe(tmp_path, argv=[str(tmp_path / "absent")])
    assert probe.read().status == "failed: the GPU probe cannot be started: No such file or directory"
    probe.close()


def test_closing_ends_the_probe_and_its_note(tmp_path: Path, fake: FakeNvml, make_probe: Make) -> None:
    fake.write(HEALTHY)
    probe = make_probe()
    probe.read()
    pid = probe.pid
    assert pid is not None
    assert (tmp_path / "nvml-probe.pid").exists()
    probe.close()
    assert gone(pid)
    assert not (tmp_path / "nvml-probe.pid").exists()


def test_a_probe_ends_when_its_agent_is_gone(fake: FakeNvml, tmp_path: Path) -> None:
    fake.write(HEALTHY)
    supervisor = ProbeSupervisor(tmp_path, env=fake.env())
    assert supervisor.ask(20.0).status is ProbeStatus.OK
    pid = supervisor.pid
    assert pid is not None and supervisor._process is not None
    supervisor._process.ask_to_stop()  # what the kernel does to its input when the agent dies
    wait_until(lambda: gone(pid), "the probe to end")
    supervisor.close()
