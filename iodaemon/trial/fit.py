"""Whether a workload fits this machine: by its sockets, widths and memory."""

from __future__ import annotations

from pathlib import Path

from iodaemon.core.platform import Partition
from iodaemon.errors import ConfigError, NoData, RequestError
from iodaemon.node.sampler.proc_files import parse_meminfo, read_file
from iodaemon.node.topology import own_limits, read_topology
from iodaemon.trial.workload import Workload
from iodaemon.units import format_bytes


def find_parts(workload: Workload, root: Path = Path("/")) -> tuple[Partition, ...]:
    """The sockets that the file names, else those of the machine.

    Raises:
        ConfigError: the file's sockets do not fit the machine.
    """
    cpus, nodes = own_limits()
    topology = workload.topology
    try:
        return read_topology(
            root,
            allowed_cpus=cpus,
            allowed_nodes=nodes,
            sockets=topology.sockets,
            slot=topology.slot,
        )
    except ConfigError as error:
        raise ConfigError(f"{workload.path}: {error}") from error


def check_widths(workload: Workload, slots: int) -> None:
    """Refuse a job that would never start.

    Args:
        workload: all of it.
        slots: of a socket, oversubscribed as the file says.

    Raises:
        RequestError: one has more cpus than that.
    """
    for number, job in enumerate(workload.jobs, start=1):
        if job.cpus > slots:
            raise RequestError(
                f"{workload.path} [[job]] {number} ({job.name}): {job.cpus} cpus, a socket {slots} "
                "slots: lower cpus, or set oversubscribe in the file's [topology]"
            )


def check_memory(workload: Workload, held_bytes: int, root: Path = Path("/")) -> None:
    """Refuse kernels that would have the machine run out of memory.

    Args:
        workload: for the message.
        held_bytes: by all that run together.
        root: of the machine.

    Raises:
        RequestError: there is less than that, and a tenth of it to spare.
    """
    try:
        available_bytes = parse_meminfo(read_file(root / "proc/meminfo")).available_bytes
    except NoData:
        return
    wanted = held_bytes + held_bytes // 10
    if held_bytes and available_bytes is not None and wanted > available_bytes:
        raise RequestError(
            f"{workload.path}: jobs that run together hold {format_bytes(held_bytes)}, and "
            f"{format_bytes(available_bytes)} of memory are free: lower hold, or count"
        )


def check_fit(workload: Workload, root: Path = Path("/")) -> None:
    """Refuse what the daemons would refuse after everything was made.

    Raises:
        ConfigError: the file's sockets do not fit the machine.
        RequestError: a job fits on none of them.
    """
    slots = [len(p.slots) * workload.topology.times for p in find_parts(workload, root)]
    check_widths(workload, max(slots, default=0))
    held = sorted((job.hold_bytes for job in workload.jobs for _ in range(job.count)), reverse=True)
    check_memory(workload, sum(held[: sum(slots)]), root)
