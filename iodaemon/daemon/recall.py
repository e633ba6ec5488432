"""What a daemon needs of the journal to go on where the last one stopped."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from iodaemon.core.drain import Drain
from iodaemon.core.job import Job, JobId
from iodaemon.core.rule import Mode
from iodaemon.daemon import database, hintbook, schema
from iodaemon.daemon.batch import Restored

decode_job: Final = msgspec.json.Decoder(Job).decode
decode_environment: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_drain: Final = msgspec.json.Decoder(Drain).decode


def recall(db: sqlite3.Connection, *, finished: int) -> Restored:
    """All of it, with so many of the newest finished jobs.

    Raises:
        msgspec.DecodeError: a record is damaged.
        JournalError: the journal is.
    """
    unfinished = database.unfinished_jobs(db)
    ended = [*database.holding_jobs(db), *database.finished_jobs(db, limit=finished)]
    found = {job.id: job for job in map(decode_job, [*unfinished, *ended])}
    jobs = [job for _, job in sorted(found.items())]
    used = {job.spec.environment_id for job in jobs if not job.state.is_final}
    environments = {
        key: decode_environment(record)
        for key in sorted(used)
        if (record := database.environment(db, key)) is not None
    }
    meta = schema.meta(db)
    return Restored(
        jobs=tuple(jobs),
        next_id=JobId(meta["next_id"]),
        seed=meta["seed"],
        environments=environments,
        mode=None if "mode" not in meta else Mode(meta["mode"]),
        drain=None if "drain" not in meta else _decode_drain(meta["drain"]),
        anchor_s=meta.get("anchor_s"),
        traces=hintbook.traces(db),
        forgotten=hintbook.forgotten(db),
    )
