"""Thousands of random operations while processes die: ``make campaign``.

``--operations N`` (5000), ``--seed N``; ``--write`` puts the figures into docs/campaign.md. Every
point is also played once with both means of suspending, and the scenes are played. Ends with 1 if
anything was lost; then iod-campaign/ has the logs of that round, and what is known of each job that
is named.
"""

import argparse
import datetime
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT), str(TESTS), str(TESTS / "daemon"), str(Path(__file__).parent)]

from chance import Round  # noqa: E402
from cuts import cut_round  # noqa: E402
from ledger import read_journal, read_pages  # noqa: E402
from player import Player  # noqa: E402
from plays import play_at  # noqa: E402
from points import POINTS, are_passed  # noqa: E402
from test_journal_cut import cut  # noqa: E402

SCENES = Path(__file__).parent / "test_scenes.py"
PAGE = ROOT / "docs/campaign.md"
STORIES = ROOT / "iod-campaign"
MEANS = ("cgroup", "signals")
TELL_EVERY = 20
"""Rounds between two signs of life."""
CUT_EVERY = 61
"""Of a page of a real round's log every so many bytes are cut at."""


class Figures:
    """What was done and what came of it, over all servers."""

    def __init__(self):
        self.operations = Counter()
        self.refusals = Counter()
        self.deaths = Counter()
        self.states = Counter()
        self.rounds = self.attempts = self.restarts = self.lines = 0
        self.cuts = self.cuts_of_rounds = self.scenes = 0
        self.violations = []

    def take(self, player):
        """Add what became of one server's jobs."""
        self.operations += player.done
        self.refusals += player.refused
        self.restarts += player.restarts
        jobs, _ = read_journal(player.journal)
        self.states += Counter(job["state"] for job in jobs.values())
        self.attempts += sum(job.get("attempt", 0) for job in jobs.values())
        self.lines += sum(len(page.read_text().splitlines()) for page in player.pages.iterdir())


def at_points(means, points, figures):
    """A round at each of these points, on one server."""
    player = Player(means)
    with player.server:
        player.start()
        for point in are_passed(points, means):
            found = play_at(player, point)
            figures.violations += [f"{means}, {point}: {fault}" for fault in found]
            figures.deaths[point] += 1
            figures.rounds += 1
        figures.take(player)


def at_random(means, seed, operations, figures):
    """Random rounds on one server until so much has been asked."""
    chance = random.Random(seed)
    player = Player(means, chance)
    with player.server:
        player.start()
        while player.done.total() < operations:
            a_round = Round(player, chance)
            told = [path.stat().st_size if path.exists() else 0 for path in player.server.logs()]
            found = a_round.play()
            where = f"{means}, seed {seed}, round {figures.rounds}"
            if found:
                keep_story(where, found, a_round, told)
            figures.violations += [f"{where}: {fault}" for fault in found]
            figures.deaths += a_round.deaths
            figures.rounds += 1
            if figures.rounds % TELL_EVERY == 0:
                asked = player.done.total()
                print(f"{figures.rounds} rounds; {means}: {asked} asked", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            cuts, lost = cut_round(player, Path(folder), CUT_EVERY)
        figures.cuts_of_rounds += cuts
        figures.violations += [f"{means}, seed {seed}: {fault}" for fault in lost]
        player.revive()
        figures.take(player)


def keep_story(where, found, a_round, told):
    """What the round was, what was logged in it, and all that is known of the jobs named."""
    player, folder = a_round.player, STORIES / re.sub(r"\W+", "-", where)
    folder.mkdir(parents=True, exist_ok=True)
    for path, size in zip(player.server.logs(), told, strict=True):
        (folder / path.name).write_bytes(path.read_bytes()[size:])
    jobs, steps = read_journal(player.journal)
    pages = read_pages(player.pages)
    lines = [*found, f"armed {a_round.armed}, died {dict(a_round.deaths)}"]
    for job in sorted(
        {int(number) for fault in found for number in re.findall(r"job (\d+)", fault)}
    ):
        lines += [f"job {job}: {jobs.get(job)}", *map(str, steps.get(job, []))]
        lines += map(str, pages.get(job, []))
    (folder / "story").write_text("\n".join(lines) + "\n")


def run(operations, seed, servers):
    """The whole campaign: every point with both means, then chance; its figures."""
    figures = Figures()
    every = sorted(POINTS)
    with ThreadPoolExecutor(servers) as pool:
        parts = [(m, every[first :: servers // 2]) for m in MEANS for first in range(servers // 2)]
        done = [pool.submit(at_points, *part, figures) for part in parts]
        share = operations // servers
        done += [
            pool.submit(at_random, MEANS[place % 2], seed + place, share, figures)
            for place in range(servers)
        ]
        for work in done:
            work.result()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        figures.cuts = cut(Path(folder), 1)
    play_scenes(figures)
    return figures


def play_scenes(figures):
    """What the gate does to a machine besides killing: in a process of its own, none skipped."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "slow", "--tb=line", "-rA", str(SCENES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    ends = [line.partition(" ")[0] for line in done.stdout.splitlines()]
    figures.scenes = ends.count("PASSED")
    if done.returncode or "SKIPPED" in ends or not figures.scenes:
        print(done.stdout, done.stderr, file=sys.stderr)
        figures.violations.append("a scene failed or was skipped; see above")


def page_lines(figures, *, operations, seed, took_s):
    """The figures as a Markdown page."""
    points = {point: n for point, n in figures.deaths.items() if point in POINTS}
    others = {word: n for word, n in figures.deaths.items() if word not in POINTS}
    today = datetime.datetime.now(tz=datetime.UTC).date()
    at_points = f"{sum(points.values())} at {len(points)} of {len(POINTS)} points"
    rows = [
        ("operations asked", f"{figures.operations.total()}: {_counts(figures.operations)}"),
        ("of these refused", _counts(figures.refusals)),
        ("rounds, each with a reckoning", str(figures.rounds)),
        ("deaths at fault points", at_points),
        ("deaths at random times", _counts(others)),
        ("cuts of a made-up log", f"{figures.cuts}, each byte of its last transaction"),
        ("cuts of real rounds' logs", f"{figures.cuts_of_rounds}, at and within transactions"),
        ("scenes", f"{figures.scenes} passed"),
        ("daemons started again", str(figures.restarts)),
        ("jobs by their end", _counts(figures.states)),
        ("attempts started", str(figures.attempts)),
        ("lines the jobs wrote", str(figures.lines)),
        ("duration", f"{took_s:.0f} s"),
        ("**violations**", f"**{len(figures.violations)}**"),
    ]
    return [
        "# The campaign",
        "",
        "Random clients submit, cancel, suspend, resume, requeue and wait while daemon,",
        "supervisor, anchor, launcher and jobs are killed at every step of journal and protocol",
        "and at random times. After each round everything settles, and what the jobs wrote of",
        "themselves is held against the journal. The scenes are what else machines do to a",
        "scheduler: anchor and supervisor that stand still, a disk that is full or turns",
        "read-only, a process that nothing can end",
        "(tests/node/campaign/test_scenes.py). A wall clock that is set is tried in the gate only",
        "(tests/daemon/test_clock.py). This page was written by",
        f"`make campaign ARGS='--operations {operations} --seed {seed} --write'` on {today};",
        f"{os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "Deaths by point:",
        "",
        *wrapped(f"{point} {n}" for point, n in sorted(points.items())),
    ]


def wrapped(items):
    """The items in lines of a page's width."""
    return textwrap.wrap(", ".join(items) + ".", 100, break_on_hyphens=False)


def _counts(counter):
    return ", ".join(f"{word} {n}" for word, n in sorted(counter.items())) or "none"


def main():
    """Run, print, perhaps write; 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    began_s = time.monotonic()
    figures = run(asked.operations, asked.seed, asked.servers)
    took_s = time.monotonic() - began_s
    lines = page_lines(figures, operations=asked.operations, seed=asked.seed, took_s=took_s)
    print("\n".join(lines))
    for fault in figures.violations:
        print(fault, file=sys.stderr)
    if figures.violations:
        print(f"again: make campaign ARGS='--seed {asked.seed}'", file=sys.stderr)
    elif asked.write:
        PAGE.write_text("\n".join(lines) + "\n")
    return int(bool(figures.violations))


if __name__ == "__main__":
    sys.exit(main())
