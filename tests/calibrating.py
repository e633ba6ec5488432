"""Calibrations for tests."""

import msgspec

from iodaemon.calibration.record import Calibration, Knee, Leaf, Load, Method, Point

MB = 1e6


def paced(sockets, total, ratio=1.0):
    """Readers that asked for so many bytes/s together."""
    return Load(
        sockets=sockets,
        readers=sockets,
        asked_bytes_per_s=total,
        had_bytes_per_s=total / ratio,
        run_ratio=ratio,
        wait_s=0.001,
    )


def point(kind="read", pattern="order", size=4096, service_s=0.001):
    return Point(
        kind=kind,
        pattern=pattern,
        asked_bytes=size,
        size_bytes=float(size),
        service_s=service_s,
        requests=100,
    )


def leaf(name="sda", identity="wwid 1, 100 sectors", points=(), **fields):
    given = {"most_bytes_per_s": 200 * MB, "loaded_bytes_per_s": 100 * MB, **fields}
    return Leaf(name=name, identity=identity, points=tuple(points or [point()]), **given)


def calibration(*leaves, **fields):
    method = Method(
        cold="direct",
        sockets=("0-7", "8-15"),
        divided=False,
        readers_per_socket=4,
        block_bytes=131072,
        file_bytes=1 << 30,
        step_s=2.0,
        once=True,
        timed_by="device",
        took_s=100.0,
    )
    made = Calibration(
        at_s=1.79e9,
        path="/data",
        description="ext4 on disk sda",
        filesystem="ext4",
        kernel="6.1.0",
        program="0.1.0",
        method=method,
        leaves=leaves or (leaf(),),
        loads=(paced(1, 10 * MB), paced(2, 20 * MB), paced(1, 40 * MB), paced(2, 80 * MB, 1.6)),
        knees=(Knee(sockets=2, fine_bytes_per_s=45 * MB, degraded_bytes_per_s=48 * MB),),
        sequential_bytes_per_s=150 * MB,
        loaded_bytes_per_s=50 * MB,
        random_bytes_per_s=1 * MB,
        random_block_bytes=4096,
        write_bytes_per_s=120 * MB,
        io_bound_bytes_per_s=40 * MB,
    )
    return msgspec.structs.replace(made, **fields)
