"""What an agent tells of its GPUs' faults, and how it answers when one is cleared (spec 10, "GPU faults"; spec 40)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from corral.agent.kernel_log import KernelLog
from corral.protocol.gpu_faults import ClearFault, FaultCleared, GpuHealth, KernelLine
from corral.protocol.messages import Ack
from tests.agent.fake_site import fake_site, run, until
from tests.agent.test_kernel_log import XID, line
from tests.agent.test_loop import agent

HEALTH = GpuHealth("GPU-1", ecc_aggregate=5)


def test_lines_are_sent_until_the_site_confirms_them(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(line(1, "eth0: link up") + line(2, XID))

    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site, KernelLog(log)) as a:
            session = await site.session()
            await until(lambda: session.reports and session.last.kernel_lines)
            assert session.last.kernel_lines == (KernelLine(2, XID),)
            assert session.last.boot_id == session.hello.boot_id
            session.socket.transport.abort()
            again = await site.session(1)
            await until(lambda: again.reports and again.last.kernel_lines)
            site.answer = lambda report: Ack(report.seq, kernel_seen=2)
            await until(lambda: not again.last.kernel_lines)
            assert not a.task.done()

    run(test)


def test_lines_wait_until_the_gpus_are_known(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(line(2, XID))

    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site, KernelLog(log)) as a:
            a.observer.probe = "starting: the driver is initialising its GPUs"
            session = await site.session()
            await session.send("clear_fault", ClearFault("look", "nvidia", "GPU-1"))
            await until(lambda: session.of(FaultCleared))
            count = len(session.reports)
            await until(lambda: len(session.reports) > count + 1)
            assert not session.last.kernel_lines
            a.observer.probe = "ok"
            await session.send("clear_fault", ClearFault("look again", "nvidia", "GPU-1"))
            await until(lambda: session.last.kernel_lines)

    run(test)


def test_a_fault_that_is_cleared_is_answered_by_a_look_that_began_after(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(line(2, XID) + line(3, "eth0: link up"))

    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site, KernelLog(log)) as a:
            session = await site.session()
            await until(lambda: session.reports)
            a.observer.health = (replace(HEALTH, ecc_aggregate=6),)
            await session.send("clear_fault", ClearFault("one", "nvidia", "GPU-1"))
            await session.send("clear_fault", ClearFault("two", "nvidia", "GPU-9"))
            one, two = await until(lambda: found if len(found := session.of(FaultCleared)) == 2 else None)
            boot = session.hello.boot_id
            assert one == FaultCleared("one", boot, 3, replace(HEALTH, ecc_aggregate=6))
            assert two == FaultCleared("two", boot, 3, None)

    run(test)


def test_a_log_that_cannot_be_read_is_a_condition_that_stops_no_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_site() as site, agent(tmp_path, site, KernelLog(tmp_path / "none")):
            session = await site.session()
            await until(lambda: session.reports and session.last.conditions)
            (condition,) = session.last.conditions
            assert (condition.kind, condition.blocking) == ("kernel_log_unreadable", False)

    run(test)
