"""``iod sim storage``: one run of StorAlloc's simulation, with requests of one's own."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

from iodaemon.cli import output
from iodaemon.cli.command import OFF, Word, argument, option
from iodaemon.cli.failure import ExitCode, UsageError, size_bytes
from iodaemon.cli.output import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iodaemon.core.storage import Storage, StorageRequest
    from iodaemon.policy.placing import Placing
    from iodaemon.simulator.storalloc_check import Agreement
    from iodaemon.simulator.storalloc_replay import Outcome

FRAME_S: Final = 0.05
"""Between two frames on a terminal."""
_COLUMNS: Final = (
    Column("DISK"),
    Column("MEAN USE", is_number=True),
    Column("MAX USE", is_number=True),
    Column("MEAN ALLOC", is_number=True),
    Column("MAX ALLOC", is_number=True),
)
Requests = Annotated[Word, argument("FILE")]
Scheduler = Annotated[
    Word, option("--scheduler", metavar="FILE", text="The scheduler's CSV, beside Darshan's.")
]
Rule = Annotated[Word, option("--rule", metavar="NAME", text="Which disk holds what [balanced].")]
Capacity = Annotated[
    Word, option("--capacity", metavar="SIZE", text="Of all disks together [32 TB].")
]
Layout = Annotated[
    Word,
    option("--layout", metavar="NAME", text="Nodes and disks: 1N1D, 1NnD, nN1D or nNnD [nNnD]."),
]
Split = Annotated[
    Word, option("--split", metavar="SIZE|none", text="Blocks of a request, at most [200 GB].")
]
Requeue = Annotated[bool, option("--requeue", text="Try a refused request again, later.")]
Books = Annotated[
    Word,
    option(
        "--books",
        metavar="NAME",
        text="Of what is free: correct, or artefact, as published [correct].",
    ),
]
Seed = Annotated[Word, option("--seed", metavar="N", text="Of what is random [1].")]
Against = Annotated[
    Word, option("--against", metavar="FILE", text="Compare with what StorAlloc printed.")
]
Watch = Annotated[bool, option("--watch", text="Show the disks in virtual time.")]
Write = Annotated[
    Word, option("--write", metavar="FILE", text="Write the requests as CSV, and end.")
]
AsJson = Annotated[bool, option("--json", text="The indicators as JSON.")]


def simulate_storage(
    path: Requests = None,
    scheduler: Scheduler = None,
    rule: Rule = None,
    capacity: Capacity = None,
    layout: Layout = None,
    split: Split = None,
    requeue: Requeue = OFF,
    books: Books = None,
    seed: Seed = None,
    against: Against = None,
    watch: Watch = OFF,
    write: Write = None,
    as_json: AsJson = OFF,
) -> int:
    """Place requests for storage on disks, and replay them.

    FILE is StorAlloc's YAML or the same fields as CSV, Darshan's CSV of Theta with --scheduler, or
    CSV with id, size_bytes, start_s, end_s; all may be .gz. Without FILE requests are
    drawn by --seed that stand for Theta's. --against takes platform, split and requeuing from the
    file of results, and the books 'artefact'; exit code 1 where a digit differs.
    """
    number = _seed(seed)
    requests = _requests(path, scheduler, number)
    if write is not None:
        return _write(requests, write)
    storage, placing = _setup(rule, capacity, layout, split, requeue, books, against)
    outcome = _run(storage, placing, requests, number, watch)
    if against is not None:
        return _compared(against, outcome, as_json)
    output.show(_document(outcome), lambda: _lines(outcome), as_json=as_json)
    return 0


def _seed(text: str | None) -> int:
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--seed {text}: write a whole number")
    return int(text)


def _requests(path: str | None, scheduler: str | None, seed: int) -> tuple[StorageRequest, ...]:
    from iodaemon.simulator.storalloc_file import read_requests
    from iodaemon.simulator.storalloc_trace import Trace, draw_requests

    if path is None:
        if scheduler is not None:
            raise UsageError("--scheduler belongs to a FILE of Darshan's: name it as well")
        return draw_requests(Trace(), seed)
    found = read_requests(Path(path), None if scheduler is None else Path(scheduler))
    for problem in found.problems:
        output.say(problem)
    return found.requests


def _write(requests: Sequence[StorageRequest], to: str) -> int:
    from iodaemon.simulator.storalloc_file import csv_lines

    text = "".join(f"{line}\n" for line in csv_lines(requests))
    if to == "-":
        sys.stdout.write(text)
    else:
        Path(to).write_text(text, encoding="utf-8")
        output.say(f"wrote {len(requests)} requests to {to}")
    return 0


def _setup(
    rule: str | None,
    capacity: str | None,
    layout: str | None,
    split: str | None,
    requeue: bool,  # noqa: FBT001 - the verb's options, in its order
    books: str | None,
    against: str | None,
) -> tuple[Storage, Placing]:
    """The platform, and how requests are placed on it."""
    from iodaemon.policy.placing import Bookkeeping
    from iodaemon.simulator import storalloc, storalloc_check
    from iodaemon.simulator.storalloc_run import placing_of

    known: tuple[Bookkeeping, ...] = get_args(Bookkeeping)
    named = next((each for each in known if each == (books or "correct")), None)
    if named is None:
        raise UsageError(f"--books {books}: write {' or '.join(known)}")
    if against is not None:
        if capacity or layout or split or requeue or books:
            raise UsageError("--against takes platform, split, requeuing and books from its file")
        printed = storalloc_check.read_printed(Path(against))
        return storalloc_check.setup_of(printed, rule or "round_robin")
    shape = next((each for each in storalloc.SHAPES if each == (layout or "nNnD")), None)
    if shape is None:
        raise UsageError(f"--layout {layout}: write {', '.join(storalloc.SHAPES)}")
    size = size_bytes("--capacity", capacity or "32 TB")
    if size < storalloc.GB:
        raise UsageError(f"--capacity {capacity}: write at least 1 GB")
    block = None if split == "none" else size_bytes("--split", split or "200 GB")
    if block is not None and block < storalloc.GB:
        raise UsageError(f"--split {split}: write at least 1 GB, or none")
    placing = placing_of(
        rule or "balanced", {}, block_bytes=block, bookkeeping=named, retries=requeue
    )
    return storalloc.layout(shape, size / storalloc.TB), placing


def _run(
    storage: Storage,
    placing: Placing,
    requests: Sequence[StorageRequest],
    seed: int,
    watched: bool,  # noqa: FBT001
) -> Outcome:
    from iodaemon.simulator.storalloc import decide
    from iodaemon.simulator.storalloc_replay import replay
    from iodaemon.simulator.storalloc_watch import Watch

    begun_s = time.perf_counter()
    decisions = decide(storage, placing, requests, seed)
    watch = None
    if watched:
        begin_s = min(request.start_s for request in requests)
        end_s = max(request.end_s for request in requests)
        watch = Watch(storage, begin_s, end_s, _Screen().show)
    outcome = replay(storage, decisions, placing.bookkeeping, watch)
    if not watched:
        output.say(f"{len(requests)} requests in {time.perf_counter() - begun_s:.2f} s")
    return outcome


class _Screen:
    """Where frames are shown: over each other on a terminal, else below each other."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._height = 0

    def show(self, lines: list[str]) -> None:
        if self._is_terminal:
            up = f"\x1b[{self._height}A" if self._height else ""
            print(up + "\n".join(f"\x1b[2K{line}" for line in lines), flush=True)
            self._height = len(lines)
            time.sleep(FRAME_S)
        else:
            print("\n".join(lines))


def _compared(against: str, outcome: Outcome, as_json: bool) -> int:  # noqa: FBT001
    from iodaemon.simulator.storalloc_check import compare, read_printed

    agreement: Agreement = compare(read_printed(Path(against)), outcome)
    output.show(agreement.document(), agreement.lines, as_json=as_json)
    return ExitCode.OK if agreement.is_same else ExitCode.REFUSED


def _document(outcome: Outcome) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(outcome)
    return found


def _lines(outcome: Outcome) -> list[str]:
    from iodaemon.simulator.storalloc import GB

    pairs = [
        ("sum_cap", f"{outcome.sum_cap / GB:.0f} GB, {outcome.parts} parts"),
        (
            "allocated",
            f"{outcome.allocated_percent:.2f} %, served whole {outcome.served_percent:.2f} %",
        ),
        ("requests", f"{outcome.requests}, split {outcome.split}, allocated {outcome.allocated}"),
        ("refused", f"{outcome.refused}, split {outcome.refused_split}"),
        ("failed", f"{outcome.failed}, split {outcome.failed_split}"),
        ("requeued", f"{outcome.requeued}, delayed {outcome.delayed}, {outcome.delay_s:.0f} s"),
        ("at once", f"{outcome.max_concurrent} allocations"),
    ]
    rows = [
        (
            str(disk.disk),
            f"{disk.mean_disk_use:.3f} %",
            f"{disk.max_disk_use:.3f} %",
            f"{disk.mean_alloc:.3f}",
            str(disk.max_alloc),
        )
        for disk in outcome.disks
    ]
    return [*output.aligned(pairs), "", *output.table(_COLUMNS, rows)]
