"""The agent's own command line: `join`, `run`, `status` (spec 40). Small, for it is also the one-file agent's entry.

Exit codes: 0 done · 1 the agent cannot work · 2 refused for good · 3 the site could not be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import corral
from corral.agent.drivers.base import Driver, Drives
from corral.agent.state import StateError, StateFolder

if TYPE_CHECKING:
    from corral.agent.trial import OnTrial

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

STATE_DIR = Path("/var/lib/corral-agent")
CANNOT, REFUSED, UNANSWERED = 1, 2, 3
DRIVER_THREADS, STREAM_THREADS, DATA_THREADS = 32, 16, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["nvml-probe"]:
        from corral.agent.inventory import nvml_probe

        return nvml_probe.main()
    if arguments[:1] == ["try-update"]:
        from corral.agent import trial

        _log_to_stderr("INFO")
        return trial.main(arguments[1:])
    args = _parser().parse_args(arguments)
    _log_to_stderr(args.log_level)
    try:
        command: Callable[[argparse.Namespace], int] = args.command
        return command(args)
    except StateError as error:
        return _fail(str(error), CANNOT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="corral-agent", description="Makes this host a machine of a Corral site.")
    parser.add_argument("--version", action="version", version=corral.__version__)
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    parts = (_add_join, _add_run, _add_self_test, _add_status, _add_clean)
    for command in (add(commands) for add in parts):
        command.add_argument("--state", type=Path, default=STATE_DIR, help=f"the agent's folder ({STATE_DIR})")
    return parser


def _add_join(commands: Commands) -> argparse.ArgumentParser:
    joining = commands.add_parser("join", help="join the site with a one-time token")
    joining.add_argument("--url", required=True, help="the site's address, e.g. https://corral.example.com")
    joining.add_argument("--token-file", required=True, type=Path, help="file that holds the join token")
    joining.add_argument("--ca", type=Path, help="CA certificates (PEM) to trust, and no others")
    joining.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="how long to try (120)")
    joining.set_defaults(command=_join)
    return joining


def _add_run(commands: Commands) -> argparse.ArgumentParser:
    running = commands.add_parser("run", help="report, and run what the site wants here")
    running.add_argument("--driver", default="podman", choices=["podman", "sim"])
    running.add_argument("--reserve-mib", type=int, default=4096, help="disk space never given to storage (4096)")
    running.add_argument("--no-network", action="store_true", help="containers get no network; ssh works the same")
    stores = "a read-only image store to use beside the own one"
    running.add_argument("--image-store", type=Path, action="append", default=[], help=stores)
    log = "where the kernel's log is read, which tells of GPU faults (/dev/kmsg)"
    running.add_argument("--kernel-log", type=Path, default=Path("/dev/kmsg"), help=log)
    running.add_argument("--trial-fd", type=int, help=argparse.SUPPRESS)  # by an older release only
    running.set_defaults(command=_run)
    return running


def _add_self_test(commands: Commands) -> argparse.ArgumentParser:
    testing = commands.add_parser("self-test", help="import all of this release and read the folder; print the release")
    testing.set_defaults(command=_self_test)
    return testing


def _add_status(commands: Commands) -> argparse.ArgumentParser:
    status = commands.add_parser("status", help="say which machine this is and what it was told to run")
    status.add_argument("--json", action="store_true")
    status.set_defaults(command=_status)
    return status


def _add_clean(commands: Commands) -> argparse.ArgumentParser:
    what = "remove all containers, storage and images of the agent from this host"
    cleaning = commands.add_parser("clean", help=what)
    cleaning.set_defaults(command=_clean)
    return cleaning


# -- join ---------------------------------------------------------------------------------------


def _join(args: argparse.Namespace) -> int:
    from corral.agent import join
    from corral.agent.site import BadUrl, Site

    state = StateFolder(args.state)
    state.make()
    state.lock()
    try:
        known = state.machine()
        if known is not None and state.tombstone() is None:
            _say(f"this host is machine {known.name} of {known.url} already; nothing was done and no token was used")
            return 0
        site = Site.at(args.url, _ca(args.ca))
        _ = site.tls
        machine = join.join(state, args.token_file, join.Attempt(site, args.wait, _say))
    except (BadUrl, join.JoinRefused) as error:
        return _fail(str(error), REFUSED)
    except join.JoinUnanswered as error:
        return _fail(f"{error}. Run the same command again: it goes on where this one stopped", UNANSWERED)
    finally:
        state.unlock()
    _say(f"joined {machine.url} as machine {machine.name}")
    return 0


def _ca(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"the CA file {path} cannot be read: {error}") from error


# -- run ----------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    state = StateFolder(args.state)
    if not args.state.is_dir():
        return _fail(f"{args.state} does not exist; join first (corral-agent join)", REFUSED)
    state.lock()
    try:
        stone = state.tombstone()
        if stone is not None and stone.done:
            _say(f"machine {stone.name} was removed from its site; join again with a new token to come back")
            return 0
        if stone is None and (state.machine() is None or not state.key()):
            return _fail("this host has not joined a site yet (corral-agent join)", REFUSED)
        hear_hangups()
        code, updating = asyncio.run(_serve(args, state))
    finally:
        state.unlock()
    if updating:
        from corral.agent import trial

        trial.begin(args.state, sys.argv[1:])
    # A thread may be stuck in a driver or the runtime for long; containers do not need us to wait for it.
    logging.shutdown()
    os._exit(code)


def hear_hangups() -> None:
    """Live through SIGHUP without ignoring it.

    What is ignored (nohup) would be ignored in every container and ssh session too, and what a
    closed session left could not be told from what its user detached. A handler is not inherited.
    """
    signal.signal(signal.SIGHUP, lambda *_: None)


async def _serve(args: argparse.Namespace, state: StateFolder) -> tuple[int, bool]:
    """Return the exit code, and whether a newer release is ready to take over instead."""
    from corral.agent.trial import OnTrial

    trial = OnTrial(args.trial_fd) if args.trial_fd is not None else None
    task = asyncio.ensure_future(_live(args, state, trial))
    if trial is not None:
        trial.watch(task.cancel)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        return 0, await task
    except asyncio.CancelledError:
        logging.info("the agent ends; what runs on this machine goes on")
    except StateError as error:
        return _fail(str(error), CANNOT), False
    return 0, False


async def _live(args: argparse.Namespace, state: StateFolder, trial: OnTrial | None) -> bool:
    """Be the machine; return whether a newer release is ready to take over."""
    from corral.agent.calls import ThreadCalls
    from corral.agent.converge import Converger
    from corral.agent.data_folder import DataFolder, Owner
    from corral.agent.data_location import DataKeeper
    from corral.agent.drivers.lazy import LazyDriver
    from corral.agent.inventory.gpus import GpuProbe
    from corral.agent.kernel_log import KernelLog
    from corral.agent.loop import Agent, Parts, bury
    from corral.agent.observe import MachineObserver
    from corral.agent.site import Site
    from corral.agent.work import BootClock, WorkFolder

    stone, machine = state.tombstone(), state.machine()
    name = stone.machine if stone is not None else machine.machine if machine is not None else ""
    data = None
    if machine is not None and stone is None:
        folder = DataFolder(Owner(machine.machine, machine.org, machine.url), state.path)
        data = DataKeeper(state, folder, ThreadCalls(DATA_THREADS, "data"))
    driver = LazyDriver(_driver(args, name, data))
    work = Converger(name, driver, WorkFolder(state), ThreadCalls(DRIVER_THREADS, "driver"), BootClock())
    try:
        if stone is not None or machine is None:
            assert stone is not None
            await bury(state, stone, work)
            return False
        observer = MachineObserver(GpuProbe(state.path), driver)
        try:
            streams = ThreadCalls(STREAM_THREADS, "stream")
            parts = Parts(state, machine, work, observer, streams, trial, data, KernelLog(args.kernel_log))
            return await Agent(parts, Site.at(machine.url, state.ca()), state.key()).run()
        finally:
            observer.close()
    finally:
        await work.close()
        driver.close()


def _driver(args: argparse.Namespace, machine: str, drives: Drives | None) -> Callable[[], Driver]:
    """Return how to make the driver; its libraries are imported then, and only its own."""

    def sim() -> Driver:
        from corral.agent.drivers.sim import SimConfig, SimDriver

        return SimDriver(SimConfig(machine), drives)

    def podman() -> Driver:
        from corral.agent.drivers.podman import PodmanConfig, PodmanDriver

        return PodmanDriver(
            PodmanConfig(
                state_dir=args.state / "podman",
                machine=machine,
                reserve_mib=args.reserve_mib,
                network=not args.no_network,
                image_stores=tuple(args.image_store),
            ),
            drives,
        )

    return sim if args.driver == "sim" else podman


# -- self-test ----------------------------------------------------------------------------------


def _self_test(args: argparse.Namespace) -> int:
    from corral.agent import release

    _say(release.self_test(StateFolder(args.state)))
    return 0


# -- clean --------------------------------------------------------------------------------------


def _clean(args: argparse.Namespace) -> int:
    """Take away what runs here and all of its data; the identity stays, so that the site can be told."""
    from corral.agent.drivers.base import DriverError
    from corral.agent.drivers.podman import PodmanConfig, PodmanDriver

    folder = args.state / "podman"
    if not folder.is_dir():
        _say("nothing to remove")
        return 0
    state = StateFolder(args.state)
    state.lock()
    machine = state.machine()
    try:
        PodmanDriver(PodmanConfig(state_dir=folder, machine=machine.machine if machine else "")).wipe()
    except DriverError as error:
        return _fail(f"{error.message}. Run the same command again", CANNOT)
    finally:
        state.unlock()
    _say("removed all containers, storage and images of the agent")
    return 0


# -- status -------------------------------------------------------------------------------------


def _status(args: argparse.Namespace) -> int:
    from corral.agent.work import WorkFolder

    state = StateFolder(args.state)
    machine, stone = state.machine(), state.tombstone()
    facts = {
        "joined": machine is not None and stone is None,
        "removed": stone is not None,
        "machine": machine.name if machine else stone.name if stone else "",
        "url": machine.url if machine else "",
        "running": state.held(),
        "release": corral.__version__,
        "update": _update_text(state),
        "allocations": [
            {"id": record.want.id, "name": record.want.name, "stop": record.want.stop, "ran": record.ran}
            for record in WorkFolder(state).load()
        ],
    }
    if args.json:
        _say(json.dumps(facts))
    else:
        for name, value in facts.items():
            _say(f"{name}: {len(value) if isinstance(value, list) else value}")
    return 0


def _update_text(state: StateFolder) -> str:
    from corral.agent.records import recall

    record = recall(state)
    if record is None:
        return ""
    return f"release {record.release} is on trial" if not record.message else f"{record.release}: {record.message}"


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(message)s")


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)  # noqa: T201 (this is a command line)


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
