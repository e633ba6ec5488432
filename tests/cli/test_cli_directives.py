"""Slurm scripts as they are: what is honoured, told and refused; names of files; shells."""

from __future__ import annotations

import json
import os
import pwd

import pytest
from fake_daemon import job

from iodaemon.cli.directives import measure, parse_lines, scratch_options
from iodaemon.cli.failure import UsageError
from iodaemon.errors import RequestError


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


# -- what is said of I/O ---------------------------------------------------------------------------

IGNORED = "the hint is ignored"
RATE_HINT = "write for example 40 MB/s, 1.5 GiB/s or 40M"
PARTS = "is no part of the run time; give 0.2 or 20%, at most 1"


def hint(spec):
    return {key: value for key, value in spec.items() if key.startswith("io_")}


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("--io-rate 40", {"io_rate_bytes_per_s": 4e7}),
        ("--io-rate 40M", {"io_rate_bytes_per_s": 4e7}),
        ("--io-rate 4e1", {"io_rate_bytes_per_s": 4e7}),
        ("--io-rate 40MB/s --io-share 0.2", {"io_rate_bytes_per_s": 4e7, "io_share": 0.2}),
        ("--io-rate 0", {"io_rate_bytes_per_s": 0.0}),
        ("--io-rate 1k --io-share 20%", {"io_rate_bytes_per_s": 1000.0, "io_share": 0.2}),
        ("--io-rate 1B --io-share 1", {"io_rate_bytes_per_s": 1.0, "io_share": 1.0}),
        ("--io-rate 1B --io-ops 2k", {"io_rate_bytes_per_s": 1.0, "io_operations_per_s": 2000.0}),
        ("--io-rate 1B --io-ops 5/s", {"io_rate_bytes_per_s": 1.0, "io_operations_per_s": 5.0}),
    ],
)
def test_a_hint_reaches_the_daemon_in_base_units(iod, daemon, here, words, sent):
    [spec], told = submitted(iod, daemon, *words.split(), "true")

    assert (sent, "") == (hint(spec), told)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--io-rate", "40 Mb/s"), f"--io-rate: '40 Mb/s' is not a rate; {RATE_HINT}"),
        (("--io-rate", "1", "--io-share", "1.5"), f"--io-share 1.5 {PARTS}"),
        (
            ("--io-rate", "1", "--io-share", "half"),
            "--io-share: 'half' is no share; write for example 0.2 or 20%",
        ),
        (("--io-share", "0.5"), "--io-share says nothing without --io-rate; give both"),
        (("--io-ops", "5"), "--io-ops says nothing without --io-rate; give both"),
        (
            ("--io-rate", "1", "--io-ops", "many"),
            "--io-ops: 'many' is no number of requests/s; write for example 500 or 2k",
        ),
    ],
    ids=" ".join,
)
def test_a_hint_without_sense_is_one_line_and_the_job_is_submitted(iod, daemon, here, words, line):
    [spec], told = submitted(iod, daemon, "-n", "2", *words, "--", "true")

    assert ({}, 2) == (hint(spec), spec["cpus"])
    assert f"iod: {line}; {IGNORED}\n" == told


def test_what_the_daemon_does_not_believe_is_told_too(iod, daemon, here):
    daemon.warnings = ["job 1: io_share 2 is nonsense"]

    result = iod("submit", "--json", "true")

    assert {"ids": [1], "warnings": daemon.warnings} == result.json
    assert "iod: job 1: io_share 2 is nonsense\n" == result.err


# -- scripts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (["#IOD io=40M"], {"io_rate_bytes_per_s": 4e7}),
        (["#IOD io=40MB/s,0.2"], {"io_rate_bytes_per_s": 4e7, "io_share": 0.2}),
        (["#IOD io=40,20%"], {"io_rate_bytes_per_s": 4e7, "io_share": 0.2}),
        (
            ["#IOD io-rate=40", "", "# more", "#IOD io-share=20%"],
            {"io_rate_bytes_per_s": 4e7, "io_share": 0.2},
        ),
        (
            ["#IOD --io-rate=40 --io-ops=7"],
            {"io_rate_bytes_per_s": 4e7, "io_operations_per_s": 7.0},
        ),
        (["#IOD 'io-rate=40 MB/s'"], {"io_rate_bytes_per_s": 4e7}),
        (["#IODs io=1", "# IOD io=2", "##IOD io=3"], {}),
        (["#IOD"], {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "command", [["./job.sh", "x"], ["sh", "-e", "job.sh"], ["bash", "./job.sh"]], ids=" ".join
)
def test_a_script_says_what_it_will_move(iod, daemon, here, lines, sent, command):
    script(here, *lines)

    [spec], told = submitted(iod, daemon, "--", *command)
    assert (sent, "") == (hint(spec), told)


def test_a_script_says_whatever_options_say(iod, daemon, here):
    script(
        here,
        "#IOD name=lu cpus=4 mem=2G time=90 max-suspend=1h",
        "#IOD no-suspend requeue hold output=out.%j error=err.%j",
    )

    [spec], _ = submitted(iod, daemon, "./job.sh")
    assert {
        "name": "lu",
        "cpus": 4,
        "memory_bytes": 2 * 2**30,
        "walltime_s": 5400.0,
        "max_suspend_s": 3600.0,
        "no_suspend": True,
        "requeue": True,
        "hold": True,
        "stdout": f"{here}/out.%j",
        "stderr": f"{here}/err.%j",
    } == {key: spec[key] for key in spec if key not in ("command", "cwd", "umask")}


@pytest.mark.parametrize("content", [b"", b"\x7fELF#IOD io=40", b"\xff\n#IOD io=40\n"])
def test_a_program_that_is_no_script_says_nothing(iod, daemon, here, content):
    (here / "prog").write_bytes(content)
    (here / "prog").chmod(0o755)

    [spec], told = submitted(iod, daemon, "./prog")
    assert ({}, "") == (hint(spec), told)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cpu=4", "no option 'cpu': did you mean cpus?"),
        ("cpus", "cpus needs a value: cpus=..."),
        ("-J big", "no option '-J': write NAME=VALUE, for example name=big time=5m"),
        ("requeue=yes", "requeue has no value"),
        (
            "time=soon",
            "--time: 'soon' is not a duration; write for example 90s, 1h30m, 2d or 01:30:00",
        ),
        ("name='a", "no closing quotation, close it or write \\ before it"),
    ],
)
def test_a_line_that_says_nothing_known_is_refused_by_its_number(iod, daemon, here, line, told):
    script(here, "", f"#IOD {line}")

    assert (2, f"./job.sh:3: #IOD: {told}") == iod.fails("submit", "./job.sh")
    assert [] == daemon.bodies("/v1/jobs")


# -- files of commands -----------------------------------------------------------------------------


def test_a_line_speaks_of_all_commands_below_it_until_the_next(iod, daemon, here):
    script(here, "#IOD io=9 name=own")
    (here / "jobs.txt").write_text(
        "true\n#IOD io=40,20% cpus=2\ntrue\n# a remark\n./job.sh\n#IOD\ntrue\n./job.sh\n"
    )

    specs, told = submitted(iod, daemon, "--from", "jobs.txt", "-n", "3")
    declared = {"io_rate_bytes_per_s": 4e7, "io_share": 0.2}
    own = {"io_rate_bytes_per_s": 9e6}
    assert [{}, declared, declared, {}, own] == list(map(hint, specs))
    assert [None, None, "own", None, "own"] == [spec.get("name") for spec in specs]
    assert ({3}, "") == ({spec["cpus"] for spec in specs}, told)


def test_nonsense_in_a_script_or_for_many_commands_is_one_line_that_names_it(iod, daemon, here):
    script(here, "#IOD io=40M,1.5")
    (here / "jobs.txt").write_text("#IOD io=1,2\n" + "true\n" * 50)
    (here / "wrong.txt").write_text("true\n#IOD what=1\ntrue\n")

    specs, told = submitted(iod, daemon, "--from", "jobs.txt")
    assert [{}] * 50 == list(map(hint, specs))
    assert f"iod: jobs.txt: io-share 2 {PARTS}; {IGNORED}\n" == told
    alone = iod("submit", "./job.sh")
    assert f"iod: ./job.sh: io-share 1.5 {PARTS}; {IGNORED}\n" == alone.err
    code, told = iod.fails("submit", "--from", "wrong.txt")
    assert (2, True) == (code, told.startswith("wrong.txt:2: #IOD: no option 'what'"))
    assert {} == hint(daemon.bodies("/v1/jobs")[-1]["jobs"][0])


# -- space on tiers --------------------------------------------------------------------------------

GIB = 2**30


def options(cwd, **words):
    words = {name.replace("_", "-"): word for name, word in words.items()}
    return scratch_options(words, str(cwd)).get("scratch")


def test_what_was_not_said_is_not_sent(tmp_path):
    assert options(tmp_path) is None
    assert {"size_bytes": 2 * GIB} == options(tmp_path, scratch="2G")
    assert {"size_bytes": 1, "tier": "fast", "fallback": "slow"} == options(
        tmp_path, scratch="1", tier="fast", scratch_fallback="slow"
    )


def test_the_input_is_measured_and_paths_are_absolute(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a").write_bytes(b"12345")
    (tmp_path / "in" / "deep" / "b").write_bytes(b"123")
    (tmp_path / "in" / "link").symlink_to("/etc")

    assert {
        "size_bytes": GIB,
        "input_path": f"{tmp_path}/in",
        "input_bytes": 8,
        "output_path": f"{tmp_path}/out",
        "output_on": "always",
        "output_bytes": 2 * GIB,
        "data_bytes": 3 * GIB,
    } == options(
        tmp_path,
        fast="1G",
        input="in",
        output="out",
        output_on="always",
        output_size="2G",
        data_size="3G",
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"scratch": "1G", "fast": "1G"}, "both ask for space"),
        ({"fast": "1G", "tier": "a"}, "--fast leaves the tier to iodaemon"),
        ({"tier": "a"}, "--tier needs space to go with"),
        ({"scratch": "x"}, "is not a size"),
        ({"scratch": "1G", "scratch_fallback": "slwo"}, "did you mean slow"),
        ({"scratch": "1G", "output_on": "always"}, "needs a directory of results"),
        ({"scratch": "1G", "output": ""}, "--output: an empty path; name a directory"),
        ({"scratch": "1G", "output": "out.%j"}, "-o FILE names the file of standard output"),
    ],
)
def test_what_means_nothing_is_a_line(tmp_path, words, line):
    with pytest.raises(UsageError) as caught:
        options(tmp_path, **words)

    assert line in str(caught.value)


def test_an_input_that_is_not_there_is_refused_before_anything_is_sent(tmp_path):
    (tmp_path / "file").touch()

    for name in ("none", "file"):
        with pytest.raises(RequestError, match=f"--input: .*{name}: .*; nothing was submitted"):
            measure(str(tmp_path / name))


def test_options_and_a_script_say_the_same(iod, daemon):
    assert 0 == iod("submit", "--scratch", "2G", "--tier", "fast", "--", "true").code
    [sent] = daemon.bodies("/v1/jobs")
    said = parse_lines([(1, "#IOD scratch=200G tier=fast scratch-fallback=slow")], "job.sh")

    assert {"size_bytes": 2 * GIB, "tier": "fast"} == sent["jobs"][0]["scratch"]
    assert {"scratch": "200G", "tier": "fast", "scratch-fallback": "slow"} == said.options
    with pytest.raises(UsageError, match=r"job.sh:1: #IOD: --scratch: 'x' is not a size"):
        parse_lines([(1, "#IOD scratch=x")], "job.sh")


# -- two options for two things --------------------------------------------------------------------

FILE = "--stdout and --output both name the file of standard output without --scratch or --fast"


def sent(iod, daemon, *words):
    """The first job that reached the daemon."""
    result = iod("submit", *words)
    assert 0 == result.code, result.err
    return daemon.bodies("/v1/jobs")[-1]["jobs"][0]


@pytest.mark.parametrize("space", ["--scratch", "--fast"])
def test_with_space_one_option_is_a_file_and_the_other_a_directory(iod, daemon, here, space):
    for option in ("-o", "--stdout"):
        spec = sent(iod, daemon, space, "1G", option, "log.%j", "--output", "res", "true")
        assert f"{here}/log.%j" == spec["stdout"]
        assert f"{here}/res" == spec["scratch"]["output_path"]
    alone = sent(iod, daemon, space, "1G", "-o", "log", "true")
    results = sent(iod, daemon, space, "1G", "--output", "res", "true")

    assert (f"{here}/log", {"size_bytes": GIB}) == (alone["stdout"], alone["scratch"])
    assert "stdout" not in results
    assert f"{here}/res" == results["scratch"]["output_path"]


@pytest.mark.parametrize("option", ["-o", "--stdout", "--output"])
def test_without_space_they_are_the_same_and_the_last_of_two_counts(iod, daemon, here, option):
    assert f"{here}/b" == sent(iod, daemon, option, "a", option, "b", "true")["stdout"]


def test_without_space_both_are_one_too_many(iod, daemon, here):
    assert (2, f"{FILE}: write one of them") == iod.fails("submit", "-o", "a", "--output=b", "true")
    script(here, "#IOD stdout=a output=b")
    assert (2, f"{FILE}: write one of them") == iod.fails("submit", "./job.sh")
    assert [] == daemon.bodies("/v1/jobs")


@pytest.mark.parametrize(
    ("line", "words", "stdout", "results"),
    [
        ("stdout=a", [], "a", None),
        ("output=a", ["-o", "b"], "b", None),
        ("scratch=1G output=a stdout=b", [], "b", "a"),
        ("scratch=1G output=a", ["-o", "b"], "b", "a"),
        ("scratch=1G stdout=a", ["--output", "b"], "a", "b"),
        ("output=a", ["--scratch", "1G"], None, "a"),
        ("stdout=a output=b", ["--fast", "1G"], "a", "b"),
    ],
)
def test_a_script_has_both_and_options_go_before_it(
    iod, daemon, here, line, words, stdout, results
):
    script(here, f"#IOD {line}")
    spec = sent(iod, daemon, *words, "./job.sh")

    assert (stdout and f"{here}/{stdout}") == spec.get("stdout")
    assert (results and f"{here}/{results}") == spec.get("scratch", {}).get("output_path")


@pytest.mark.parametrize("space", ["scratch", "fast"])
def test_an_output_where_a_file_is_in_the_way_is_refused(tmp_path, space):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").touch()
    (tmp_path / "dangling").symlink_to("nowhere")

    for output in ("in/a", "in/a/deep", "dangling"):
        with pytest.raises(RequestError, match=r"--output: .* is no directory; nothing was sub"):
            options(tmp_path, **{space: "1G", "output": output})


# -- what is kept ----------------------------------------------------------------------------------


def test_of_each_job_a_line_says_whether_what_was_kept_is_removed(iod, daemon):
    def remove(**done):
        """Of ended jobs, where the daemon answers so."""
        scratch = {"output_path": "/out", "kept": None}
        ended = [
            (job(int(name[1:]), "FAILED", scratch=scratch), is_done)
            for name, is_done in done.items()
        ]
        rows = [{"id": each["id"], "job": each, "removed": is_done} for each, is_done in ended]
        daemon.add(*(each for each, _ in ended))
        daemon.answers["/v1/jobs/scratch/remove"] = (200, json.dumps({"results": rows}).encode())
        return iod("scratch", "remove", "7,8")

    both = remove(j7=True, j8=True)
    as_json = iod("scratch", "remove", "7,8", "--json").json
    one = remove(j7=True, j8=False)

    assert (0, "job 7 removed\njob 8 removed\n", "") == (both.code, both.out, both.err)
    assert [True, True] == [each["removed"] for each in as_json]
    assert (1, "job 7 removed\n") == (one.code, one.out)
    assert "job 8 is not removed yet" in one.err
