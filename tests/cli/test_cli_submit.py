"""``iod submit``: what it sends, what it refuses before it sends, what it prints."""

from __future__ import annotations

import io
import os
import shlex
import sys

import pytest

from iodaemon.cli.submit import split_words

TIME_HINT = "write for example 90s, 1h30m, 2d or 01:30:00"
NOTHING = "nothing was submitted"


def sent(daemon):
    """The one request that reached the daemon."""
    [body] = daemon.bodies("/v1/jobs")
    return body


def pipe(monkeypatch, text):
    """Have standard input hold this."""
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-n", "2", "--", "env", "-i", "--", "x y"], ["env", "-i", "--", "x y"]),
        (["-n", "2", "env", "-n", "--json"], ["env", "-n", "--json"]),
    ],
    ids=["after the dashes", "from the first word that is no option"],
)
def test_the_command_is_sent_as_a_list(iod, daemon, here, words, command):
    result = iod("submit", *words)

    [spec] = sent(daemon)["jobs"]
    assert (0, "job 1\n", "") == (result.code, result.out, result.err)
    assert (command, 2) == (spec["command"], spec["cpus"])


def test_every_option_reaches_the_daemon_in_base_units(iod, daemon, here):
    options = (
        "-J lu -n 4 --mem 2G -t 90 --io-rate 40 --no-suspend --max-suspend 1h --requeue --hold"
    )
    iod("submit", *options.split(), "-o", "out.%j", "-e", "err.%j", "true")

    [spec] = sent(daemon)["jobs"]
    umask = os.umask(0)
    os.umask(umask)
    expected = {
        "name": "lu",
        "cpus": 4,
        "memory_bytes": 2 * 1024**3,
        "walltime_s": 5400.0,
        "io_rate_bytes_per_s": 4e7,
        "no_suspend": True,
        "max_suspend_s": 3600.0,
        "requeue": True,
        "hold": True,
        "cwd": str(here),
        "stdout": f"{here}/out.%j",
        "stderr": f"{here}/err.%j",
        "umask": umask,
        "command": ["true"],
    }
    assert expected == spec


@pytest.mark.parametrize(
    ("option", "text", "key", "value"),
    [
        ("-t", "5", "walltime_s", 300.0),  # minutes where it has no unit
        ("-t", "1.5", "walltime_s", 90.0),
        ("-t", "90m", "walltime_s", 5400.0),
        ("-t", "01:30:00", "walltime_s", 5400.0),
        ("-t", "20 s", "walltime_s", 20.0),
        ("--mem", "4000", "memory_bytes", 4000 * 1024**2),  # MiB where it has none
    ],
)
def test_a_bare_number_has_the_unit_of_its_option_and_nothing_else_is_sent(
    iod, daemon, here, option, text, key, value
):
    iod("submit", option, text, "true")

    [spec] = sent(daemon)["jobs"]
    assert value == spec.pop(key)
    assert {"command", "cwd", "umask", "shares_cores"} == set(spec)


def test_the_environment_is_sent_with_additions(iod, daemon, here, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("BAD", os.fsdecode(b"\xff"))
    result = iod("submit", "--env", "MINE=2", "--env", "MORE=a=b", "true")

    environment = sent(daemon)["environment"]
    assert (0, "iod: variable BAD is left out: it is no UTF-8\n") == (result.code, result.err)
    assert ("2", "a=b") == (environment["MINE"], environment["MORE"])
    assert os.environ["PATH"] == environment["PATH"]
    assert "BAD" not in environment


def test_a_clean_environment_has_little_in_it(iod, daemon, here, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("HOME", "/home/ann")
    iod("submit", "--clean-env", "--env", "MORE=1", "true")

    environment = sent(daemon)["environment"]
    assert "MINE" not in environment
    clean = {"HOME": "/home/ann", "MORE": "1", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    assert clean.items() <= environment.items()


def test_a_simulated_nodes_commands_are_no_programs(iod, daemon, here):
    daemon.backend = "simulated"
    (here / "jobs.txt").write_text("compute=5s read=2GiB\nread=1GiB\n")

    assert iod("submit", "--", "compute=5s", "read=2GiB").out == "job 1\n"
    assert iod("submit", "--from", "jobs.txt").out == "jobs 2-3\n"
    assert [seen[:2] for seen in daemon.seen] == [("GET", "/v1/node"), ("POST", "/v1/jobs")] * 2


def test_a_program_is_looked_for_from_the_jobs_directory(iod, daemon, here):
    script = here / "sub" / "run"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    assert iod("submit", "-D", "sub", "./run").code == 0
    assert iod("submit", "-D", "sub", "--env", "PATH=.", "run").code == 0
    assert str(here / "sub") == daemon.bodies("/v1/jobs")[0]["jobs"][0]["cwd"]


# -- what is refused -------------------------------------------------------------------------------

CPUS = "is no number of CPUs: write for example --cpus 4"
SIZE = "is not a size; write for example 16 GiB, 2G or 500 MB"
FILES = {
    "foo": "",
    "data": "#!/bin/cat -u\n",
    "gone.sh": "#!/opt/gone\n",
    "executable.sh": "#!/opt/gone\n",
    "dos.sh": "#!/bin/sh\r\ntrue\r\n",
    "quote.txt": "true\necho 'a\n",
    "foo.txt": "true\n\nfoo x\n",
    "remark.txt": "# only\n\n",
    "empty.txt": "",
    "nul.txt": "true\necho \0\n",
    "bytes.txt": b"true\n\xff\xfe\n",
    **{
        f"line{number}.txt": f"true\n{line}\n"
        for number, line in enumerate(
            ("-J name true", "-J name -- ", "--env A=1 -- true", "-n 4 make -- all", "-n x -- true")
        )
    },
}


@pytest.fixture
def stocked(here):
    """A directory with files that cannot be run, or read as commands."""
    for name, text in FILES.items():
        (here / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (here / "executable.sh").chmod(0o755)
    (here / "folder").mkdir()
    (here / "link").symlink_to("/dev/stderr")
    return here


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        (2, ["-t", "soon", "true"], f"--time: 'soon' is not a duration; {TIME_HINT}"),
        (2, ["--time", "0", "true"], "--time: '0' must be above 0; or leave --time out"),
        (2, ["--mem", "lots", "true"], f"--mem: 'lots' {SIZE}"),
        (2, ["-n", "4.5", "true"], f"--cpus: '4.5' {CPUS}"),
        (2, ["--env", "PATH", "true"], "--env: 'PATH' has no value; write --env NAME=VALUE"),
        (
            2,
            ["--from", "-", "true"],
            "--from reads the commands from a file: leave the command away",
        ),
        (1, ["nowhere", "-x"], f"nowhere: no such command in PATH; {NOTHING}"),
        (1, ["foo"], f"foo: no such command in PATH; did you mean ./foo?; {NOTHING}"),
        (1, ["./gone"], f"./gone: no such file; {NOTHING}"),
        (1, ["./data"], f"./data: not executable, try chmod +x ./data; {NOTHING}"),
        (1, ["./folder"], f"./folder: is a directory; {NOTHING}"),
        (1, ["--", ""], f"the command is an empty word; {NOTHING}"),
        (1, ["echo", os.fsdecode(b"\xff")], "is no UTF-8 text"),
        (1, ["-D", "gone", "true"], f"/gone: no such directory; {NOTHING}"),
        (1, ["-o", "no/out", "true"], "--stdout: {}/no: no such directory"),
        (1, ["-o", "folder", "true"], "--stdout: {}/folder is a directory"),
        (1, ["-o", "", "true"], "is a directory"),
        *(
            (
                1,
                ["-o", name, "true"],
                "is a descriptor, which each process has its own of; name a file",
            )
            for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/2", "link")
        ),
        *(
            (
                1,
                [script],
                f"{script}: its interpreter /opt/gone is missing or not executable; {NOTHING}",
            )
            for script in ("./gone.sh", "./executable.sh")
        ),
        (1, ["dos.sh"], "has line ends of DOS"),
        (
            1,
            ["--from", "quote.txt"],
            f"quote.txt:2: no closing quotation, close it or write \\ before it; {NOTHING}",
        ),
        (1, ["--from", "foo.txt"], "foo.txt:3: foo: no such command in PATH; did you mean ./foo?"),
        *(
            (
                1,
                ["--from", name],
                f"--from: no command in {name}: write one a line; {NOTHING}",
            )
            for name in ("remark.txt", "empty.txt")
        ),
        (1, ["--from", "nul.txt"], f"nul.txt:2: '\\x00' contains a NUL byte; {NOTHING}"),
        (1, ["--from", "bytes.txt"], f"--from: bytes.txt is no UTF-8 text; {NOTHING}"),
        (3, ["--from", "no.txt"], f"--from: no.txt: no such file; {NOTHING}"),
        (
            2,
            ["--from", "line0.txt"],
            "line0.txt:2: options have a command behind --, as in '-J name -- ./solve'",
        ),
        (2, ["--from", "line1.txt"], "line1.txt:2: options have a command behind --"),
        (2, ["--from", "line2.txt"], "line2.txt:2: a line has no option --env; it may have -J, "),
        (2, ["--from", "line4.txt"], f"line4.txt:2: --cpus: 'x' {CPUS}"),
    ],
)
def test_what_cannot_be_run_or_means_nothing_is_refused_before_anything_is_sent(
    iod, daemon, stocked, code, words, line
):
    found, told = iod.fails("submit", *words)

    assert (code, True) == (found, line.replace("{}", str(stocked)) in told), told
    assert daemon.bodies("/v1/jobs") == []


def test_a_present_directory_that_is_gone_is_told(iod, daemon, here):
    here.rmdir()

    code, line = iod.fails("submit", "true")

    assert code == 1
    assert line.startswith("the present directory is gone: go to another one, or use --chdir")


# -- a dry run -------------------------------------------------------------------------------------


def test_a_dry_run_has_the_daemon_check_what_would_be_sent(iod, daemon, here):
    daemon.warnings = ["no limit of memory is in force here"]
    result = iod("submit", "--dry-run", "-n", "2", "-t", "5", "--", "echo", "a b")

    assert result.code == 0
    assert result.out.splitlines()[:3] == ["command   echo 'a b'", "cpus      2", "walltime  5m"]
    assert result.err.splitlines() == [
        "iod: 1 job would be submitted; nothing was",
        "iod: no limit of memory is in force here",
    ]
    assert [body["jobs"][0]["cpus"] for body in daemon.bodies("/v1/jobs?dry_run=1")] == [2]
    assert daemon.bodies("/v1/jobs") == []


def test_a_dry_run_without_a_daemon_says_that_it_checked_less(iod, here):
    result = iod("submit", "--dry-run", "true")
    as_json = iod("submit", "--dry-run", "--json", "echo", "x").json

    assert result.code == 0
    [first, second] = result.err.splitlines()
    assert first.startswith("iod: no daemon answers on ")
    assert first.endswith("; without one, not all is checked")
    assert second == "iod: 1 job would be submitted; nothing was"
    assert as_json["jobs"][0]["command"] == ["echo", "x"]
    assert iod.fails("submit", "--dry-run", "foo")[0] == 1


# -- scripts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("-",), ()])
def test_a_script_from_standard_input_is_kept_in_the_command(iod, daemon, here, monkeypatch, words):
    text = "#!/bin/sh -e\n#IOD name=piped\n#SBATCH -n 3\necho $1\n"
    pipe(monkeypatch, text)

    result = iod("submit", "-t", "5", *words, *(["one"] if words else []))

    [spec] = sent(daemon)["jobs"]
    assert (0, "") == (result.code, result.err)
    assert spec["command"] == ["/bin/sh", "-e", "-c", text, "standard-input", *["one"] * len(words)]
    assert ("piped", 3, 300.0) == (spec["name"], spec["cpus"], spec["walltime_s"])


def test_the_interpreter_is_given_the_text_as_it_takes_it(iod, daemon, here, monkeypatch):
    text = "#!/usr/bin/env python3\nimport sys\n"
    pipe(monkeypatch, text)
    iod("submit", "-", "a", "b")

    [spec] = sent(daemon)["jobs"]
    assert spec["command"] == ["/usr/bin/env", "python3", "-c", text, "a", "b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo hello\n", "no script: it must begin with #! and what runs it"),
        ("#!/bin/sh\r\ntrue\r\n", "has line ends of DOS"),
        ("\ufeff#!/bin/sh\ntrue\n", "begins with a byte order mark"),
        ("#!/usr/bin/env cat\n", "cat takes its script from a file only: write one"),
        ("#!/bin/sh\n" + "#" * 131_072, "and 131071 are taken: write it to a file"),
        (b"#!/bin/sh\necho \xff\n", "is no UTF-8 text"),
    ],
)
def test_a_script_that_could_not_run_is_not_submitted(
    iod, daemon, here, monkeypatch, text, problem
):
    pipe(monkeypatch, text)
    code, line = iod.fails("submit", "-")

    assert (1, True) == (code, problem in line), line
    assert line.endswith(f"; {NOTHING}")
    assert daemon.bodies("/v1/jobs") == []


@pytest.mark.parametrize("name", ["job.sh", "./job.sh"])
@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_script_that_is_not_executable_is_run_by_its_interpreter(
    iod, daemon, here, name, is_in_file
):
    (here / "job.sh").write_text("#! /bin/sh -e\n#IOD cpus=2\ntrue\n")
    (here / "jobs.txt").write_text(f"{name} x\n{name} y\n")
    iod("submit", *(["--from", "jobs.txt"] if is_in_file else ["--", name, "x"]))

    first, *others = sent(daemon)["jobs"]
    assert (["/bin/sh", "-e", name, "x"], 2) == (first["command"], first["cpus"])
    assert ["y"] * is_in_file == [spec["command"][-1] for spec in others]


# -- many at once ---------------------------------------------------------------------------------


def test_from_submits_every_line_in_one_request(iod, daemon, here, monkeypatch):
    lines = ["\ufeff# head", "", "echo 'a b' c\\ d", "  true  ", "echo a#b"]
    (here / "jobs.txt").write_text("\n".join(lines))

    result = iod("submit", "-n", "2", "--from", "jobs.txt")

    specs = sent(daemon)["jobs"]
    assert (0, "jobs 1-3\n") == (result.code, result.out)
    assert [["echo", "a b", "c d"], ["true"], ["echo", "a#b"]] == [s["command"] for s in specs]
    assert [2, 2, 2] == [spec["cpus"] for spec in specs]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufefftrue\ntrue\n"))
    assert "4\n5\n" == iod("submit", "--parsable", "--from", "-").out


def test_sbatch_lines_of_a_file_of_commands_are_told(iod, daemon, here):
    (here / "jobs.txt").write_text("true\n#SBATCH -t 1\n#SBATCH --array=1-3\ntrue\n")

    result = iod("submit", "--from", "jobs.txt")

    assert (0, "jobs 1-2\n") == (result.code, result.out)
    assert "jobs.txt:2: #SBATCH is read in scripts only and has no effect" in result.err


def test_jobs_that_would_share_an_output_file_are_warned_of(iod, daemon, here):
    (here / "jobs.txt").write_text("true\ntrue\n")

    shared = iod("submit", "-o", "out", "--from", "jobs.txt")
    own = iod("submit", "-o", "out.%j", "--from", "jobs.txt")

    told = f"iod: 2 jobs write to the one file {here}/out: %j in its name parts them\n"
    assert (told, "") == (shared.err, own.err)


def test_a_line_may_begin_with_options_which_go_before_all_others(iod, daemon, here):
    lines = ["#IOD name=all mem=1G", "-J 'the big' -n 4 --no-suspend -- echo -- x", "true"]
    (here / "jobs.txt").write_text("\n".join(lines))
    (here / "shell.txt").write_text("-J x -- echo 'a  b' | cat\n")
    iod("submit", "-n", "2", "--from", "jobs.txt")

    first, second = sent(daemon)["jobs"]
    big = {"command": ["echo", "--", "x"], "name": "the big", "cpus": 4, "no_suspend": True}
    assert big.items() <= first.items()
    assert {"command": ["true"], "name": "all", "cpus": 2}.items() <= second.items()
    assert first["memory_bytes"] == second["memory_bytes"]
    iod("submit", "--shell", "--from", "shell.txt")
    [spec] = daemon.bodies("/v1/jobs")[-1]["jobs"]
    assert ("x", ["sh", "-c", "echo 'a  b' | cat"]) == (spec["name"], spec["command"])


@pytest.mark.parametrize("text", ["a b", "a 'b c' d", 'a "b\\"c"', "a\\ b", "a\tb  c", "a#b", "''"])
def test_the_short_cut_splits_as_shlex_does(text):
    assert shlex.split(text) == split_words(text)
