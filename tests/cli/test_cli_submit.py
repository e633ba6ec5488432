"""``iod submit``: what it sends, what it refuses before it sends, what it prints."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest
from fake_daemon import job

from iodaemon.cli import main
from iodaemon.cli.submit import split_words

TIME_HINT = "write for example 90s, 1h30m, 2d or 01:30:00"
NOTHING = "nothing was submitted"


def sent(daemon):
    """The one request that reached the daemon."""
    [body] = daemon.bodies("/v1/jobs")
    return body


def test_the_command_is_all_after_the_dashes(iod, daemon, here):
    result = iod("submit", "-n", "2", "--", "env", "-i", "--", "x y")

    assert (result.code, result.out, result.err) == (0, "job 1\n", "")
    assert sent(daemon)["jobs"][0]["command"] == ["env", "-i", "--", "x y"]


def test_the_command_begins_at_the_first_word_that_is_no_option(iod, daemon, here):
    iod("submit", "-n", "2", "env", "-n", "--json")

    [spec] = sent(daemon)["jobs"]
    assert (spec["command"], spec["cpus"]) == (["env", "-n", "--json"], 2)


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
    ("time", "walltime_s"),
    [("5", 300.0), ("1.5", 90.0), ("90m", 5400.0), ("01:30:00", 5400.0), ("20 s", 20.0)],
)
def test_time_is_minutes_where_it_has_no_unit(iod, daemon, here, time, walltime_s):
    iod("submit", "-t", time, "true")

    assert walltime_s == sent(daemon)["jobs"][0]["walltime_s"]


def test_memory_is_mebibytes_where_it_has_no_unit(iod, daemon, here):
    iod("submit", "--mem", "4000", "true")

    assert sent(daemon)["jobs"][0]["memory_bytes"] == 4000 * 1024**2


def test_what_is_not_asked_for_is_not_sent(iod, daemon, here):
    iod("submit", "true")

    assert {"command", "cwd", "umask", "shares_cores"} == set(sent(daemon)["jobs"][0])


def test_the_environment_is_sent_with_additions(iod, daemon, here, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    iod("submit", "--env", "MINE=2", "--env", "MORE=a=b", "true")

    environment = sent(daemon)["environment"]
    assert (environment["MINE"], environment["MORE"]) == ("2", "a=b")
    assert os.environ["PATH"] == environment["PATH"]


def test_a_clean_environment_has_little_in_it(iod, daemon, here, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("HOME", "/home/ann")
    iod("submit", "--clean-env", "--env", "MORE=1", "true")

    environment = sent(daemon)["environment"]
    assert "MINE" not in environment
    assert (environment["HOME"], environment["MORE"]) == ("/home/ann", "1")
    assert environment["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_a_variable_that_is_no_text_is_left_out_and_named(iod, daemon, here, monkeypatch):
    monkeypatch.setenv("BAD", os.fsdecode(b"\xff"))

    result = iod("submit", "true")

    assert (result.code, result.err) == (0, "iod: variable BAD is left out: it is no UTF-8\n")
    assert "BAD" not in sent(daemon)["environment"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("-t", "soon"), f"--time: 'soon' is not a duration; {TIME_HINT}"),
        (("--time", "0"), "--time: '0' must be above 0; or leave --time out"),
        (("--time", "-5"), f"--time: '-5' is not a duration; {TIME_HINT}"),
        (("--mem", "lots"), "--mem: 'lots' is not a size; write for example 16 GiB, 2G or 500 MB"),
        (("--mem", "nan"), "--mem: 'nan' is not a size; write for example 16 GiB, 2G or 500 MB"),
        (("-n", "0"), "--cpus: '0' is no number of CPUs: write for example --cpus 4"),
        (("-n", "4.5"), "--cpus: '4.5' is no number of CPUs: write for example --cpus 4"),
        (
            ("-n", "9" * 5000),
            f"--cpus: {'9' * 40!r} is no number of CPUs: write for example --cpus 4",
        ),
        (("-n", "٣"), "--cpus: '٣' is no number of CPUs: write for example --cpus 4"),
        (("--env", "PATH"), "--env: 'PATH' has no value; write --env NAME=VALUE"),
        (("--env", "=x"), "--env: '=x' has no name; write --env NAME=VALUE"),
        (("--from", "-"), "--from reads the commands from a file: leave the command away"),
    ],
)
def test_nonsense_in_an_option_is_exit_code_2(iod, daemon, here, words, line):
    assert (2, line) == iod.fails("submit", *words, "--", "true")
    assert daemon.bodies("/v1/jobs") == []


def test_no_command_is_exit_code_2(iod, monkeypatch):
    pipe(monkeypatch, "")
    line = "no command to submit: write it after --, as in 'iod submit -- make -j4'"

    assert (2, line) == iod.fails("submit", "--name", "x")


def test_a_command_that_does_not_exist_is_not_submitted(iod, daemon, here):
    line = "foo: no such command in PATH; nothing was submitted"

    assert (1, line) == iod.fails("submit", "--", "foo", "-x")
    assert daemon.bodies("/v1/jobs") == []


def test_a_simulated_nodes_commands_are_no_programs(iod, daemon, here):
    daemon.backend = "simulated"
    (here / "jobs.txt").write_text("compute=5s read=2GiB\nread=1GiB\n")

    assert iod("submit", "--", "compute=5s", "read=2GiB").out == "job 1\n"
    assert iod("submit", "--from", "jobs.txt").out == "jobs 2-3\n"
    assert [seen[:2] for seen in daemon.seen] == [("GET", "/v1/node"), ("POST", "/v1/jobs")] * 2


def test_a_script_beside_the_user_is_guessed(iod, daemon, here):
    (here / "foo").write_text("")

    assert "did you mean ./foo?" in iod.fails("submit", "foo")[1]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("./gone", "./gone: no such file; nothing was submitted"),
        ("./data", "./data: not executable, try chmod +x ./data; nothing was submitted"),
        ("./folder", "./folder: is a directory; nothing was submitted"),
        ("", "the command is an empty word; nothing was submitted"),
    ],
)
def test_a_program_that_cannot_run_is_not_submitted(iod, daemon, here, program, line):
    (here / "data").write_text("#!/bin/cat -u\n")
    (here / "data").chmod(0o644)
    (here / "folder").mkdir()

    assert (1, line) == iod.fails("submit", "--", program)


def test_a_program_is_looked_for_from_the_jobs_directory(iod, daemon, here):
    script = here / "sub" / "run"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    assert iod("submit", "-D", "sub", "./run").code == 0
    assert iod("submit", "-D", "sub", "--env", "PATH=.", "run").code == 0
    assert str(here / "sub") == daemon.bodies("/v1/jobs")[0]["jobs"][0]["cwd"]


def test_bytes_that_are_no_text_cannot_be_sent(iod, daemon, here):
    code, line = iod.fails("submit", "--", "echo", os.fsdecode(b"\xff"))

    assert code == 1
    assert "is no UTF-8 text" in line


def test_a_directory_that_does_not_exist_is_told(iod, daemon, here):
    line = f"{here}/gone: no such directory; nothing was submitted"

    assert (1, line) == iod.fails("submit", "-D", "gone", "true")


def test_a_present_directory_that_is_gone_is_told(iod, daemon, here):
    here.rmdir()

    code, line = iod.fails("submit", "true")

    assert code == 1
    assert line.startswith("the present directory is gone: go to another one, or use --chdir")


@pytest.mark.parametrize(
    ("name", "words"),
    [("no/out", "no such directory"), ("sub", "is a directory"), ("", "is a directory")],
)
def test_output_needs_a_place_that_exists(iod, daemon, here, name, words):
    (here / "sub").mkdir()

    code, line = iod.fails("submit", "-o", name, "true")

    assert code == 1
    assert line.startswith("--stdout: ")
    assert words in line


def test_parsable_prints_the_bare_number(iod, daemon, here):
    assert iod("submit", "--parsable", "true").out == "1\n"


def test_json_prints_the_apis_answer(iod, daemon, here):
    assert iod("submit", "--json", "true").json == {"ids": [1]}


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


def test_a_dry_run_refuses_what_the_daemon_refuses(iod, daemon, here):
    told = b'{"error": {"code": "refused", "message": "name is too long; shorten it"}}'
    daemon.answers["/v1/jobs?dry_run=1"] = (400, told)

    assert iod.fails("submit", "--dry-run", "true") == (1, "name is too long; shorten it")


def test_a_dry_run_without_a_daemon_says_that_it_checked_less(iod, here):
    result = iod("submit", "--dry-run", "true")

    assert result.code == 0
    [first, second] = result.err.splitlines()
    assert first.startswith("iod: no daemon answers on ")
    assert first.endswith("; without one, not all is checked")
    assert second == "iod: 1 job would be submitted; nothing was"


def test_a_dry_run_as_json_is_the_request(iod, here):
    result = iod("submit", "--dry-run", "--json", "echo", "x")

    assert result.json["jobs"][0]["command"] == ["echo", "x"]


def test_a_dry_run_finds_the_same_faults(iod, here):
    assert iod.fails("submit", "--dry-run", "foo")[0] == 1


# -- scripts ------------------------------------------------------------------------------------


def pipe(monkeypatch, text):
    """Have standard input hold this."""
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("words", [("-",), ()])
def test_a_script_from_standard_input_is_kept_in_the_command(iod, daemon, here, monkeypatch, words):
    text = "#!/bin/sh -e\n#IOD name=piped\n#SBATCH -n 3\necho $1\n"
    pipe(monkeypatch, text)

    result = iod("submit", "-t", "5", *words, *(["one"] if words else []))

    [spec] = sent(daemon)["jobs"]
    assert (result.code, result.err) == (0, "")
    assert spec["command"] == ["/bin/sh", "-e", "-c", text, "standard-input", *["one"] * len(words)]
    assert (spec["name"], spec["cpus"], spec["walltime_s"]) == ("piped", 3, 300.0)


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
        ("", "no script: it must begin with #!"),
        ("#!/bin/sh\r\ntrue\r\n", "has line ends of DOS"),
        ("\ufeff#!/bin/sh\ntrue\n", "begins with a byte order mark"),
        ("#!/bin/gone\n", "its interpreter /bin/gone is missing or not executable"),
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

    assert code == 1
    assert problem in line
    assert line.endswith("; nothing was submitted")
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
    assert (first["command"], first["cpus"]) == (["/bin/sh", "-e", name, "x"], 2)
    assert [spec["command"][-1] for spec in others] == ["y"] * is_in_file


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_script_whose_interpreter_is_missing_is_not_submitted(iod, daemon, here, mode):
    (here / "job.sh").write_text("#!/opt/gone\n")
    (here / "job.sh").chmod(mode)

    assert iod.fails("submit", "./job.sh") == (
        1,
        "./job.sh: its interpreter /opt/gone is missing or not executable; nothing was submitted",
    )


def test_line_ends_of_dos_are_told_of_a_script_that_is_named_without_its_place(iod, daemon, here):
    (here / "job.sh").write_bytes(b"#!/bin/sh\r\ntrue\r\n")

    assert "has line ends of DOS" in iod.fails("submit", "job.sh")[1]


# -- many at once ---------------------------------------------------------------------------------


def test_from_submits_every_line_in_one_request(iod, daemon, here):
    lines = ["\ufeff# head", "", "echo 'a b' c\\ d", "  true  ", "echo a#b"]
    (here / "jobs.txt").write_text("\n".join(lines))

    result = iod("submit", "-n", "2", "--from", "jobs.txt")

    assert (result.code, result.out) == (0, "jobs 1-3\n")
    specs = sent(daemon)["jobs"]
    assert [s["command"] for s in specs] == [["echo", "a b", "c d"], ["true"], ["echo", "a#b"]]
    assert [spec["cpus"] for spec in specs] == [2, 2, 2]


def test_sbatch_lines_of_a_file_of_commands_are_told(iod, daemon, here):
    (here / "jobs.txt").write_text("true\n#SBATCH -t 1\n#SBATCH --array=1-3\ntrue\n")

    result = iod("submit", "--from", "jobs.txt")

    assert (result.code, result.out) == (0, "jobs 1-2\n")
    assert "jobs.txt:2: #SBATCH is read in scripts only and has no effect" in result.err


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/2", "link"])
def test_a_descriptor_is_no_output_file(iod, here, name):
    (here / "link").symlink_to("/dev/stderr")

    code, line = iod.fails("submit", "-o", name, "--", "true")

    assert code == 1
    assert "is a descriptor, which each process has its own of; name a file" in line


def test_from_reads_standard_input(iod, daemon, here, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufefftrue\ntrue\n"))

    assert iod("submit", "--parsable", "--from", "-").out == "1\n2\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "true\necho 'a\n",
            f"jobs.txt:2: no closing quotation, close it or write \\ before it; {NOTHING}",
        ),
        ("true\n\nfoo x\n", "jobs.txt:3: foo: no such command in PATH; nothing was submitted"),
        ("# only\n\n", "--from: no command in jobs.txt: write one a line; nothing was submitted"),
        ("", "--from: no command in jobs.txt: write one a line; nothing was submitted"),
        ("true\necho \0\n", "jobs.txt:2: '\\x00' contains a NUL byte; nothing was submitted"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_submitted(iod, daemon, here, text, line):
    (here / "jobs.txt").write_text(text)

    assert (1, line) == iod.fails("submit", "--from", "jobs.txt")
    assert daemon.bodies("/v1/jobs") == []


def test_a_file_that_is_no_text_is_refused(iod, daemon, here):
    (here / "jobs.txt").write_bytes(b"true\n\xff\xfe\n")

    line = "--from: jobs.txt is no UTF-8 text; nothing was submitted"
    assert (1, line) == iod.fails("submit", "--from", "jobs.txt")


def test_a_file_that_is_not_there_is_exit_code_3(iod, daemon, here):
    line = "--from: jobs.txt: no such file; nothing was submitted"

    assert (3, line) == iod.fails("submit", "--from", "jobs.txt")


def test_jobs_that_would_share_an_output_file_are_warned_of(iod, daemon, here, monkeypatch):
    (here / "jobs.txt").write_text("true\ntrue\n")

    shared = iod("submit", "-o", "out", "--from", "jobs.txt")
    own = iod("submit", "-o", "out.%j", "--from", "jobs.txt")

    assert (
        f"iod: 2 jobs write to the one file {here}/out: %j in its name parts them\n" == shared.err
    )
    assert own.err == ""


def test_a_line_may_begin_with_options_which_go_before_all_others(iod, daemon, here):
    lines = ["#IOD name=all mem=1G", "-J 'the big' -n 4 --no-suspend -- echo -- x", "true"]
    (here / "jobs.txt").write_text("\n".join(lines))
    iod("submit", "-n", "2", "--from", "jobs.txt")

    first, second = sent(daemon)["jobs"]
    assert (first["command"], first["name"], first["cpus"], first["no_suspend"]) == (
        *(["echo", "--", "x"], "the big", 4),
        True,
    )
    assert (second["command"], second["name"], second["cpus"]) == (["true"], "all", 2)
    assert first["memory_bytes"] == second["memory_bytes"]


def test_options_of_a_line_leave_its_command_to_the_shell(iod, daemon, here):
    (here / "jobs.txt").write_text("-J x -- echo 'a  b' | cat\n")
    iod("submit", "--shell", "--from", "jobs.txt")

    [spec] = sent(daemon)["jobs"]
    assert (spec["name"], spec["command"]) == ("x", ["sh", "-c", "echo 'a  b' | cat"])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("-J name true", "options have a command behind --, as in '-J name -- ./solve'"),
        ("-J name -- ", "options have a command behind --"),
        ("--env A=1 -- true", "a line has no option --env; it may have -J, --name, "),
        ("-n 4 make -- all", "the words before -- must be options of 'iod submit'"),
        ("-n x -- true", "--cpus: 'x' is no number of CPUs"),
    ],
)
def test_an_option_of_a_line_that_means_nothing_is_named(iod, daemon, here, line, problem):
    (here / "jobs.txt").write_text(f"true\n{line}\n")
    code, told = iod.fails("submit", "--from", "jobs.txt")

    assert code == 2
    assert told.startswith("jobs.txt:2: ")
    assert problem in told
    assert daemon.bodies("/v1/jobs") == []


@pytest.mark.parametrize("text", ["a b", "a 'b c' d", 'a "b\\"c"', "a\\ b", "a\tb  c", "a#b", "''"])
def test_the_short_cut_splits_as_shlex_does(text):
    import shlex

    assert shlex.split(text) == split_words(text)


# -- waiting --------------------------------------------------------------------------------------


def test_wait_returns_the_jobs_own_code_after_its_number(iod, daemon, here):
    def end():
        daemon.waiting.wait(10)
        daemon.end(1, "FAILED", exit_code=3, shell_code=3)

    ender = threading.Thread(target=end)
    ender.start()
    result = iod("submit", "--wait", "--", "false")
    ender.join()

    assert (result.code, result.out) == (3, "job 1\n")
    assert result.err == "iod: job 1 FAILED: exit code 3\n"


def test_a_refused_submission_is_exit_code_1(iod, daemon, here):
    daemon.answers["/v1/jobs"] = (400, b'{"error": {"code": "refused", "message": "too big"}}')

    assert iod.fails("submit", "true") == (1, "too big")


def test_a_daemon_that_loses_ids_is_no_daemon_of_ours(iod, daemon, here):
    daemon.answers["/v1/jobs"] = (201, b'{"ids": []}')

    assert "is not an iodaemon" in iod.fails("submit", "true")[1]


def test_the_socket_comes_from_the_environment(daemon, here, monkeypatch, capsys):
    daemon.add(job(1))
    monkeypatch.setenv("IOD_API_SOCKET", daemon.path)

    assert main(["show", "1"]) == 0


@pytest.mark.slow
def test_a_hundred_thousand_lines_take_seconds(here):
    from iodaemon.cli.directives import NOTHING as SAID
    from iodaemon.cli.submit import Reader, parse_commands

    lines = (f"echo file-{n}.dat --level {n % 9}\n" for n in range(100_000))
    commands = parse_commands(lines, "lines", Reader(list, lambda words: SAID))

    assert len(commands) == 100_000


def test_the_source_of_this_project_names_no_shell(here):
    """The command is a list from the command line to the daemon."""
    import iodaemon.cli

    for path in Path(iodaemon.cli.__file__).parent.glob("*.py"):
        assert "shell=True" not in path.read_text()
