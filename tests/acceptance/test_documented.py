"""Every iod command of README.md and docs/*.md that can be run here is run, and does its work."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from documented import CALLS
from harness import is_listening, until
from storalloc_files import YAML

from iodaemon.cli import main

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
NOT_RUN = {
    "daemon": "runs until it is stopped; one runs behind this test",
    "logs": "a simulated job writes nothing",
    "events -f": "goes on for ever",
    "doctor": "what works on this machine is no matter of the documentation",
    "install": "changes the machine",
    "backup": "writes to /backup",
    "restore": "reads from /backup",
    "calibrate": "measures the disk of /data",
    "compare": "runs real jobs for minutes",
    "hint import": "reads logs of Darshan that are not here",
    "hint forget": "needs a job of a solver that has ended",
    "replay": "needs an hour of samples",
    "submit --scratch": "needs a tier of storage",
    "submit --fast": "needs a tier of storage",
    "sim run --all": "computes for an hour",
    "sim run carretero": "computes for minutes",
    "sim run equilibrio": "computes for minutes",
    "sim run lv-workloads": "computes for minutes",
    "sim run storalloc": "computes for minutes",
    "sim run together": "computes for minutes",
    "sim report": "is of all experiments",
    "sim storage darshan.csv": "reads files of Theta that are not here",
}
"""Why; by the words that such a command begins with."""
CODES = {"wait": (1, 143)}
"""Of a job that was cancelled, so that nobody waits 10 s for it: waiting, or running."""


SMALL = {
    "run": ["--quick", "--jobs", "1", "--set", "workload.jobs=8"],
    "plot": ["--quick"],
}
"""What is added to the calls of a simulation, so that it takes no time."""


def why_not(line):
    return next((words for words in NOT_RUN if line.startswith(words)), None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with what the commands name, and the socket of a simulated node."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files = {
        "commands.txt": "./solve a\n./solve b\n",
        "job.sh": "#!/bin/sh\nexec true\n",
        "mine.toml": (ROOT / "policies/dynamic.toml").read_text(),
        "requests.yml": YAML,
    }
    for name, text in files.items():
        Path(name).write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    socket = tmp_path / "run" / "iod.sock"
    monkeypatch.setenv("IOD_API_SOCKET", str(socket))
    command = [sys.executable, "-m", "iodaemon.cli", "daemon", "--backend", "simulated"]
    places = ["--state-dir", str(tmp_path / "state"), "--socket", str(socket)]
    with subprocess.Popen([*command, *places], stderr=subprocess.DEVNULL) as daemon:
        until(lambda: is_listening(socket), "a daemon that listens")
        yield tmp_path
        daemon.terminate()


def test_every_command_in_the_documentation_does_its_work(place, capsys):
    wrong, left = {}, set(NOT_RUN)
    for _ in range(7):  # the commands name jobs up to 7
        assert 0 == main(["submit", "--", "true"])
    last = [(page, words) for page, words in CALLS if words[0] == "stop"]
    for page, words in [*(call for call in CALLS if call not in last), *last]:
        line = shlex.join(words)
        if (reason := why_not(line)) is not None:
            left.discard(reason)
            continue
        if words[0] in ("wait", "drain"):
            main(["cancel", "--yes", words[1] if words[0] == "wait" else "all"])
        capsys.readouterr()
        more = SMALL.get(words[1], []) if words[::2][:2] == ["sim", "first-steps"] else []
        code = main([*words, *more])
        if code not in CODES.get(words[0], (0,)):
            wrong[f"{page}: iod {line}"] = (int(code), capsys.readouterr().err)

    assert {} == wrong
    assert set() == left
