"""Whether what jobs print can fill the filesystem that the journal is written to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from iodaemon.doctor.finding import Finding, judge
from iodaemon.doctor.scratch import existing_directory
from iodaemon.node.devices import find_device


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Where both lie.

    Attributes:
        supervisor_dir: with the output of jobs that name no file.
        shared: with the journal.
        description: of what the output lies on, for people.
    """

    supervisor_dir: Path
    shared: bool
    description: str


def probe_output_disk(state_dir: Path, supervisor_dir: Path) -> Reading:
    """Look at both, or at what is above them while they do not exist.

    Args:
        state_dir: where the journal is.
        supervisor_dir: where that output is.
    """
    journal, output = find_device(state_dir), find_device(supervisor_dir)
    # Subvolumes of one btrfs have device numbers of their own and share the room.
    is_same = bool(output.devices) and output.description == journal.description
    places = (state_dir, supervisor_dir)
    numbers = {os.stat(existing_directory(str(each))).st_dev for each in places}
    shared = is_same or len(numbers) == 1
    return Reading(supervisor_dir=supervisor_dir, shared=shared, description=output.description)


def judge_output_disk(reading: Reading) -> Finding:
    """Two filesystems are better."""
    shown = f"{reading.supervisor_dir} is {reading.description}"
    return judge(
        not reading.shared,
        "disk of the output",
        f"{shown}, which is the journal's filesystem" if reading.shared else shown,
        {"shared": reading.shared},
        cost="jobs may fill it, each with output_max at most; then nothing is accepted any more",
        remedy="set supervisor_dir to a directory on another file system, or give users quotas",
    )
