"""Slurm scripts as they are: what is honoured, told and refused; names of files; shells."""

from __future__ import annotations

import os
import pwd

import pytest


def submitted(iod, daemon, *words):
    """The specs that reached the daemon, and what was said meanwhile."""
    result = iod("submit", *words)
    assert result.code == 0, result.err
    [body] = daemon.bodies("/v1/jobs")
    return body["jobs"], result.err


def script(here, *lines, name="job.sh", shebang="#!/bin/sh"):
    (here / name).write_text("\n".join([shebang, *lines, "exec true", ""]))
    (here / name).chmod(0o755)


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("-n 4", {"cpus": 4}),
        ("--ntasks=2 --cpus-per-task=3", {"cpus": 6}),
        ("-n2 -c3 -N1", {"cpus": 6}),
        ("--nodes=1 --ntasks-per-node=3 # all of it", {"cpus": 3}),
        ("-t 90", {"walltime_s": 5400.0}),
        ("--time 1-12:30:15", {"walltime_s": 131415.0}),
        ("--time=UNLIMITED", {}),
        ("-J lu --requeue -H", {"name": "lu", "requeue": True, "hold": True}),
        ("--mem=4000", {"memory_bytes": 4000 << 20}),
        ("--mem 4gb", {"memory_bytes": 4 << 30}),
        ("--mem=0", {}),
        ("--mem-per-cpu=1G -c 4", {"memory_bytes": 4 << 30, "cpus": 4}),
        ("--export=ALL --open-mode=append --no-requeue", {}),
        ("--job-name='a b'", {"name": "a b"}),
    ],
)
@pytest.mark.parametrize("command", ["./job.sh", "bash -l job.sh x", "nice sh ./job.sh"])
def test_what_means_the_same_here_is_honoured(iod, daemon, here, line, sent, command):
    script(here, "", "# a job", f"#SBATCH {line}")

    [spec], told = submitted(iod, daemon, "--", *command.split())

    assert told == ""
    plain = {"command", "cwd", "umask", "shares_cores"}
    assert ("cpus" not in sent) == spec.get("shares_cores", False)
    assert sent == {key: value for key, value in spec.items() if key not in plain}


def test_a_script_names_its_files_and_its_directory(iod, daemon, here):
    (here / "data").mkdir()
    script(here, "#SBATCH -D data -o %x-%j.out", "#SBATCH --error=%u_%J.err")

    [spec], told = submitted(iod, daemon, "./job.sh")

    user = pwd.getpwuid(os.geteuid()).pw_name
    assert ("", f"{here}/data") == (told, spec["cwd"])
    assert f"{here}/data/job.sh-%j.out" == spec["stdout"]
    assert f"{here}/data/{user}_%j.err" == spec["stderr"]
    assert [f"{here}/./job.sh"] == spec["command"]


def test_options_go_before_iod_lines_and_these_before_sbatch_lines(iod, daemon, here):
    (here / "other").mkdir()
    script(here, "#SBATCH -n 2 -t 10 -J slurm -D other", "#IOD time=20 name=iod")

    [spec], _ = submitted(iod, daemon, "-J option", "-D", str(here), "./job.sh")

    assert (2, 1200.0) == (spec["cpus"], spec["walltime_s"])
    assert str(here) == spec["cwd"]


def test_what_has_no_effect_here_is_told_in_one_line(iod, daemon, here):
    script(
        here,
        "#SBATCH -p batch --mail-type=END -n 2",
        "#SBATCH --gres gpu:1 --nonsense",
        "#SBATCH --export=NONE --exclusive",
    )

    [spec], told = submitted(iod, daemon, "./job.sh")

    assert 2 == spec["cpus"]
    [line] = told.splitlines()
    for option in ("partition", "mail-type", "gres", "nonsense", "export", "exclusive"):
        assert f"--{option} " in line
    assert "./job.sh:2: " in line


@pytest.mark.parametrize(
    "line",
    [
        *("--array=1-10", "-a 1-10%2", "-d afterok:7", "--begin=now+1hour", "-N 2", "--nodes=2-4"),
        *("-n many", "-c 0", "--mem=lots", "-t soon", "-J 'a"),
    ],
)
def test_what_would_be_another_job_without_it_is_refused_by_its_line(iod, daemon, here, line):
    script(here, "#SBATCH -J right", f"#SBATCH {line}")

    code, told = iod.fails("submit", "./job.sh")

    assert 2 == code
    assert "./job.sh:3: #SBATCH: " in told
    assert [] == daemon.bodies("/v1/jobs")


def test_lines_below_the_first_command_are_told_with_their_number(iod, daemon, here):
    script(
        here,
        '"""What this does."""',
        "#IOD time=90m",
        "import os",
        "#SBATCH -n 4",
        "#SBATCH -t 4",
        name="job.py",
        shebang="#!/usr/bin/python3",
    )

    [spec], told = submitted(iod, daemon, "--", "python3", "job.py")

    assert {"command", "cwd", "umask", "shares_cores"} == spec.keys()
    iod_line, sbatch_line = told.splitlines()
    assert "job.py:3: #IOD " in iod_line
    assert "job.py:5: #SBATCH " in sbatch_line
    assert "line 2" in iod_line


# -- names of output files -------------------------------------------------------------------------


def test_a_files_name_has_the_jobs_name_and_the_users(iod, daemon, here):
    (here / "runs.txt").write_text("python3 a.py\nsh -c 'exec ./b'\n")
    (here / "lu").mkdir()

    [spec], told = submitted(iod, daemon, "-J", "lu", "-o", "%x/%x-%j-100%%.txt", "true")
    assert (f"{here}/lu/lu-%j-100%.txt", "") == (spec["stdout"], told)
    daemon.seen.clear()
    specs, _ = submitted(iod, daemon, "--from", "runs.txt", "-o", "%x-%N-%j")
    host = os.uname().nodename
    assert [f"{here}/{name}-{host}-%j" for name in ("a.py", "b")] == [s["stdout"] for s in specs]


@pytest.mark.parametrize("option", ["-o", "-e"])
def test_a_pattern_that_means_nothing_is_refused(iod, daemon, here, option):
    for name in ("out-%n.txt", "%A_%a", "%5j", "50%", "%%j"):
        code, told = iod.fails("submit", option, name, "true")
        assert (2, True) == (code, "%j" in told)
    assert [] == daemon.bodies("/v1/jobs")


# -- shells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("cat a > out.txt", ">"),
        ("cat a 2> out.txt", "2>"),
        ("cat a | cat", "|"),
        ("cat a && cat b", "&&"),
        ("cat $HOME/a", "$H"),
        ('cat "$HOME/a"', "$H"),
        ("cat *.dat", "*"),
        ("cat ~/a", "~/"),
        ("cat `ls`", "`"),
        ("cat 'a > b' 'x | y' '$HOME' \"a; b\" a\\ \\> --a=1&b=2 a~b", ""),
        ("cat -x '*.dat' # > no shell", ">"),
        ("cat a>b", ">"),
    ],
)
def test_what_only_a_shell_understands_is_told_of_a_file_of_commands(iod, daemon, here, line, sign):
    (here / "runs.txt").write_text(f"true\n{line}\n{line}\n")

    _, told = submitted(iod, daemon, "--from", "runs.txt")

    assert bool(sign) == bool(told)
    if sign:
        assert f"runs.txt:2: {sign} " in told
        assert "--shell" in told


def test_a_shell_runs_a_line_or_each_line_on_request(iod, daemon, here):
    (here / "runs.txt").write_text("cat a > 'b c' | cat\n\ntrue\n")
    lines = ["cat a > 'b c' | cat", "true"]

    specs, told = submitted(iod, daemon, "--shell", "--from", "runs.txt")
    assert "" == told
    assert [["sh", "-c", line] for line in lines] == [spec["command"] for spec in specs]
    daemon.seen.clear()
    assert "--shell" in iod.fails("submit", lines[0])[1]
    [spec], _ = submitted(iod, daemon, "--shell", "--", lines[0])
    assert ["sh", "-c", lines[0]] == spec["command"]
