"""A study of a few lines, for the tests of what runs, keeps, reports and draws studies."""

from __future__ import annotations

import os
import random
import signal
import time

import msgspec

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Series

FILE = """\
title = "Means of random numbers"
source = "Laplace 1812, chapter 1"
study = "tiny_study:Study"
seeds = [1, 2, 3]

[parameters]
sizes = [10, 1000]

[quick]
seeds = [1]
sizes = [10]

[[target]]
id = "T1a"
quantity = "mean of the largest sample"
source = "section 2"
published = 0.5
low = 0.48
high = 0.52

[[target]]
id = "T1b"
quantity = "greatest mean"
source = "figure 2"
published = "below a quarter"
high = 0.25
note = "it cannot be"

[[target]]
id = "T1c"
quantity = "number of means"
source = "table 1"
published = 6

[[choice]]
silent = "how many numbers"
chosen = "1000"
why = "enough to see it"
option = "sizes"
"""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Means of so many random numbers.

    Attributes:
        sizes: of the samples.
        pause_s: how long the first task sleeps, so that a later one is done first.
        fails: what becomes of the last task: ``error``, ``kill``, or nothing; ``late``: what
            becomes of the measures.
        policies: labels, for --policy.
    """

    sizes: tuple[int, ...] = (10,)
    pause_s: float = 0.0
    fails: str = ""
    policies: tuple[str, ...] = ("plain",)

    def __post_init__(self):
        if min(self.sizes) < 1:
            raise ValueError(f"sizes is {list(self.sizes)}; every one must be at least 1")

    def tasks(self, seeds):
        return [(seed, size) for seed in seeds for size in self.sizes]

    def run(self, task):
        seed, size = task
        is_last = size == self.sizes[-1]
        if self.pause_s and size == self.sizes[0]:
            time.sleep(self.pause_s)
        if self.fails == "error" and is_last:
            raise ArithmeticError("no such\n  mean")
        if self.fails == "kill" and is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        rng = random.Random(seed)
        numbers = [rng.random() for _ in range(size)]
        made = {"kind": "mean", "seed": seed, "size": size, "mean": mean(numbers)}
        return [made, {"kind": "end", "seed": seed, "last": numbers[-1], "name": "x, y"}]

    def measure(self, rows):
        if self.fails == "late":
            raise KeyError("fifo")
        means = [row for row in rows if row["kind"] == "mean"]
        largest = [row["mean"] for row in means if row["size"] == max(self.sizes)]
        return {
            "T1a": mean(largest),
            "T1b": max(row["mean"] for row in means),
            "T1c": float(len(means)),
        }

    def figures(self, rows):
        means = [row for row in rows if row["kind"] == "mean"]
        ours = Series(
            label="ours",
            x=tuple(row["size"] for row in means),
            y=tuple(row["mean"] for row in means),
        )
        paper = Series(label="Laplace", x=(10,), y=(0.5,), is_published=True)
        return [
            Figure(
                name="figure-2",
                title="Means (figure 2)",
                x_label="numbers",
                y_label="mean",
                kind="point",
                series=(ours, paper),
                log_x=True,
            )
        ]
