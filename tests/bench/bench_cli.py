"""D4: how long a command takes from the prompt to the prompt."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench_daemon import Daemon, private_daemon
from bench_figure import Check, Section, Series, alternate
from bench_plan import Plan

HELLO = '''"""The smallest program with two commands."""
import typer

app = typer.Typer()


@app.command()
def hello(name: str) -> None:
    print("hello", name)


@app.command()
def goodbye(name: str) -> None:
    print("goodbye", name)


if __name__ == "__main__":
    app()
'''
TYPER = "typer, two commands"


def _milliseconds(command: list[str], environment: dict[str, str]) -> float:
    began_s = time.monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd="/")
    return (time.monotonic() - began_s) * 1000.0


def _verbs(daemon: Daemon, job_id: int) -> dict[str, list[str]]:
    iod = [sys.executable, "-m", "iodaemon.cli", "--api", daemon.client.socket_path]
    number = str(job_id)
    return {
        "iod submit": [*iod, "submit", "-o", "/dev/null", "--", "/bin/true"],
        "iod queue": [*iod, "queue"],
        "iod show": [*iod, "show", number],
        "iod wait (of an ended job)": [*iod, "wait", number],
    }


def measure_cli(plan: Plan) -> Section:
    """D4."""
    rounds = 4 if plan.is_quick else max(15, plan.rounds)
    hello = plan.base / "hello.py"
    hello.write_text(HELLO)
    tree = next(iter(plan.checkouts.values()))
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with private_daemon(checkout=tree) as daemon:
        [job_id] = daemon.submit(["/bin/true"])
        daemon.finish([job_id])
        commands = _verbs(daemon, job_id)
        peers = {
            TYPER: [sys.executable, str(hello), "hello", "you"],
            "python -c pass": [sys.executable, "-c", "pass"],
        }
        variants: dict[str, Callable[[], float]] = {
            name: (lambda command=command: _milliseconds(command, environment))
            for name, command in {**commands, **peers}.items()
        }
        for run in variants.values():
            run()  # compiled once, in the page cache
        results = alternate(variants, rounds, plan.tell("D4"))
    bare_ms = statistics.median(results[TYPER])
    return Section(
        title="D4: the command line",
        series=[
            Series(name, found, "ms", is_peer=name in peers) for name, found in results.items()
        ],
        checks=[
            Check(f"{name}, to {TYPER}", statistics.median(results[name]) / bare_ms, 1.1, "times")
            for name in commands
        ],
        notes=[f"whole commands, {rounds} rounds; the same interpreter for all"],
    )
