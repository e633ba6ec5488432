"""What the jobs themselves wrote of their lives, held against what the daemon says of them.

Each job appends to a page of its own, outside of the daemon's state, one line at its start and one
at its end. ``violations`` compares the pages with the journal: a pure function, tested by itself.
"""

import contextlib
import json
import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LOST"})
AGAIN = "Requeued"
"""The reason's code of every step that leads to another run."""


class Line(NamedTuple):
    """One line of a job: ``start`` or ``end``, of which attempt, when (s after boot).

    The token is unique to the process that wrote it, also over boots; the code is that of an end.
    """

    word: str
    job: int
    attempt: int
    name: str
    token: str
    pid: int
    at_s: float
    code: int | None


def script(pages, body, code):
    """A shell script that tells its life: starts, does the body, ends with the code."""
    page = f'"{pages}/$IOD_JOB_ID"'
    life = "$IOD_JOB_ID $IOD_ATTEMPT $IOD_JOB_NAME $token $$ $now"
    return (
        "read token < /proc/sys/kernel/random/uuid; read now rest < /proc/uptime\n"
        f'echo "start {life}" >> {page}\n{body}\n'
        f'read now rest < /proc/uptime\necho "end {life} {code}" >> {page}\nexit {code}\n'
    )


def read_pages(pages):
    """All lines, in the order in which they were written to each page, by job."""
    return {
        int(page.name): [_line(text) for text in page.read_text().splitlines()]
        for page in pages.iterdir()
    }


def _line(text):
    word, job, attempt, name, token, pid, at_s, *code = text.split()
    assert word in ("start", "end"), text
    end = int(code[0]) if word == "end" else None
    return Line(word, int(job), int(attempt), name, token, int(pid), float(at_s), end)


def read_states(path):
    """The state of each job, as it is on the disk."""
    with contextlib.closing(sqlite3.connect(path)) as journal:
        return dict(journal.execute("SELECT job_id, state FROM life"))


def read_journal(path):
    """The jobs and the steps of each, as they are on the disk."""
    with contextlib.closing(sqlite3.connect(path)) as journal:
        query = "SELECT job_id, spec, record FROM life JOIN job ON job.id = job_id"
        jobs = {
            job: {"id": job, "spec": json.loads(spec), **json.loads(life)}
            for job, spec, life in journal.execute(query)
        }
        query = "SELECT job_id, at_s, record FROM event WHERE kind = 'moved' ORDER BY id"
        steps = defaultdict(list)
        for job, at_s, text in journal.execute(query):
            before, after, reason = json.loads(text)
            step = {"at_s": at_s, "before": before, "after": after, "reason": reason}
            steps[job].append(step)
    return jobs, steps


@dataclass
class Told:
    """What a client asked for and was told, and what was done to the processes.

    Attributes:
        acknowledged: the names of the jobs that it was given numbers for.
        cancelled: jobs somebody asked to end, whatever was answered.
        requeued: jobs somebody asked to run again, whatever was answered.
        bereft: jobs that ran while anchor and supervisor may both have died: they may be LOST.
        struck: jobs whose first process may have been killed.
    """

    acknowledged: dict[int, str] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    requeued: set[int] = field(default_factory=set)
    bereft: set[int] = field(default_factory=set)
    struck: set[int] = field(default_factory=set)


def violations(pages, jobs, steps, told, *, only=None):
    """What is not as it must be once all has settled, one sentence each; nothing is the rule.

    Args:
        pages: the jobs' own lines, by job.
        jobs: the journal's records, by job.
        steps: the journal's steps of each job.
        told: what the client asked and heard.
        only: the jobs whose lives are looked at; None: all.
    """
    found = []
    for job, name in told.acknowledged.items():
        if job not in jobs:
            found.append(f"job {job} was acknowledged and is unknown")
        elif jobs[job]["spec"].get("name") != name:
            found.append(f"job {job} was acknowledged as {name} and is another")
    names = Counter(record["spec"].get("name") for record in jobs.values())
    found += [f"{name} exists {n} times" for name, n in names.items() if n > 1]
    found += [f"job {job} ran and is unknown" for job in pages if job not in jobs]
    for job, record in sorted(jobs.items()):
        if only is not None and job not in only:
            continue
        life = _Life(job, record, steps.get(job, []), pages.get(job, []), told)
        found += [f"job {job}: {fault}" for fault in life.faults()]
    return found


class _Life:
    """One job: the daemon's record and steps, and its own lines."""

    def __init__(self, job, record, steps, lines, told):
        self.record, self.steps, self.told = record, steps, told
        self.job, self.state = job, record["state"]
        self.last = record.get("attempt", 0)
        self.exit = record.get("exit") or {}
        self.starts = [line for line in lines if line.word == "start"]
        self.ends = {line.attempt: line for line in lines if line.word == "end"}
        self.lines = lines

    def faults(self):
        if self.state not in FINAL:
            yield f"is {self.state}, and nothing is left to wait for"
            return
        yield from self._once()
        yield from self._in_turn()
        yield from self._attempts()
        yield from self._truth()

    def _once(self):
        """Each attempt runs at most once, and under its own name."""
        for attempt, times in Counter(line.attempt for line in self.starts).items():
            if times > 1:
                yield f"attempt {attempt} started {times} times"
            if attempt > self.last:
                yield f"attempt {attempt} ran, the daemon knows of {self.last}"
        tokens = {line.token for line in self.starts}
        if len(tokens) < len(self.starts):
            yield "two starts with one token"
        if any(line.token not in tokens for line in self.ends.values()):
            yield "an end without its start"
        if any(line.name != self.record["spec"].get("name") for line in self.lines):
            yield "ran under another name"

    def _in_turn(self):
        """No attempt begins before the last one is over."""
        for before, after in zip(self.lines, self.lines[1:], strict=False):
            if (after.attempt, after.at_s) < (before.attempt, before.at_s):
                yield f"attempt {after.attempt} still ran when {before.attempt} had begun"

    def _attempts(self):
        """Another attempt only after a requeue, or after one that provably never ran."""
        attempt, ran = 0, {line.attempt for line in self.starts}
        for step in self.steps:
            reason = (step.get("reason") or {}).get("code")
            if step["after"] == "STARTING":
                attempt += 1
            elif step["after"] == "PENDING" and step["before"] not in (None, "HELD"):
                if reason == AGAIN and self.job not in self.told.requeued:
                    yield "was requeued, and nobody asked for it"
                if reason == "StartFailed" and attempt in ran:
                    yield f"attempt {attempt} ran, and the daemon says it never did"
                if reason not in (AGAIN, "StartFailed"):
                    yield f"waits again because of {reason}"
        if attempt != self.last:
            yield f"the steps tell of {attempt} attempts, the record of {self.last}"

    def _truth(self):
        """The end that is told is the one that it had."""
        end = self.ends.get(self.last)
        code, signal = self.exit.get("code"), self.exit.get("signal")
        if self.state == "COMPLETED" and (end is None or end.code != 0):
            yield "is COMPLETED, and did not come to its end"
        if self.state == "FAILED":
            yield from self._failed(end, code, signal)
        if self.state == "CANCELLED" and self.job not in self.told.cancelled:
            yield "is CANCELLED, and nobody asked for it"
        if self.state == "LOST" and self.job not in self.told.bereft:
            yield "is LOST, and the root side was not killed"
        if self.state == "TIMEOUT":
            yield "is TIMEOUT, and had no limit"
        if self.state == "OUT_OF_MEMORY" and self.job not in self.told.struck:
            # One that was struck looks like that when the kernel kills something else on the
            # machine for memory at the same time (iodaemon.node.sampler.node_counters).
            yield "is OUT_OF_MEMORY, and nobody killed it"
        if end is not None and code is not None and code != end.code:
            yield f"ended with {end.code}, told is {code}"

    def _failed(self, end, code, signal):
        if signal is not None and self.job not in self.told.struck:
            yield f"FAILED by signal {signal}, and nobody sent one"
        elif signal is None and code is None:
            yield "FAILED without an exit"
        elif signal is None and code in (126, 127) and end is None:
            has_run = self.last in {line.attempt for line in self.starts}
            if has_run or self.job not in self.told.bereft:
                yield "is said to have never run"
        elif signal is None and end is None:
            yield f"FAILED with {code}, and did not come to its end"
