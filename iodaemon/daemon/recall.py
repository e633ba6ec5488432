"""What a daemon needs of the journal to go on where the last one stopped."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from iodaemon.core.drain import Drain
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.rule import Mode
from iodaemon.daemon import database, hintbook, lesson_book, schema
from iodaemon.daemon.batch import PASSED, Passed, Restored

_TEXT_WITH_CURE: Final = re.compile(
    r"(.*); ((?:an administrator's )?'iod resume [0-9]+') lets it (?:go|try again)", re.DOTALL
)
"""Of a hold, as journals before ``Reason.cure`` have it."""

decode_job: Final = msgspec.json.Decoder(Job).decode


def decode_jobs(rows: Iterable[database.JobRow]) -> list[Job]:
    """The jobs of these rows.

    Raises:
        msgspec.DecodeError: a record is damaged, or is another job's; names the row.
    """
    jobs = []
    for job_id, record in rows:
        with database.named(f"job {job_id}"):
            job = decode_job(record)
            if job.id != job_id:
                raise ValueError(f"it is the record of job {job.id}")
        jobs.append(_split_cures(job) if job.user_hold else job)
    return jobs


def _split_cures(job: Job) -> Job:
    return msgspec.structs.replace(
        job, reason=_split_cure(job.reason), user_hold_reason=_split_cure(job.user_hold_reason)
    )


def _split_cure(reason: Reason | None) -> Reason | None:
    if reason is None or (found := _TEXT_WITH_CURE.fullmatch(reason.text)) is None:
        return reason
    return Reason(code=reason.code, text=found[1], cure=found[2])


decode_environment: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_drain: Final = msgspec.json.Decoder(Drain).decode
_decode_passed: Final = msgspec.json.Decoder(Passed).decode


def recall(db: sqlite3.Connection, *, finished: int) -> Restored:
    """All of it, with so many of the newest finished jobs.

    Raises:
        msgspec.DecodeError: a record is damaged.
        JournalError: the journal is.
    """
    unfinished = database.unfinished_jobs(db)
    ended = [*database.holding_jobs(db), *database.finished_jobs(db, limit=finished)]
    found = {job.id: job for job in decode_jobs([*unfinished, *ended])}
    jobs = [job for _, job in sorted(found.items())]
    used = {job.spec.environment_id for job in jobs if not job.state.is_final}
    environments = {}
    for key in sorted(used):
        if (record := database.environment(db, key)) is not None:
            with database.named(f"environment {key}"):
                environments[key] = decode_environment(record)
    meta = schema.meta(db)
    with database.named("an imported run"):
        traces = hintbook.traces(db)
    with database.named("a lesson"):
        lessons = lesson_book.lessons(db)
    with database.named("meta mode"):
        mode = None if "mode" not in meta else Mode(meta["mode"])
    with database.named("meta drain"):
        drain = None if "drain" not in meta else _decode_drain(meta["drain"])
    with database.named("meta anchor_s"):
        anchor_s = None if "anchor_s" not in meta else float(meta["anchor_s"])
    with database.named("meta passed"):
        passed = None if PASSED not in meta else _decode_passed(meta[PASSED])
    return Restored(
        jobs=tuple(jobs),
        next_id=JobId(meta["next_id"]),
        seed=meta["seed"],
        environments=environments,
        mode=mode,
        drain=drain,
        anchor_s=anchor_s,
        passed=passed,
        traces=traces,
        forgotten=hintbook.forgotten(db),
        lessons=lessons,
    )
