"""``iod submit --scratch``, ``#IOD scratch=``, and ``iod scratch remove``."""

import json

import pytest
from fake_daemon import job

from iodaemon.cli.directives import measure, parse_lines, scratch_options
from iodaemon.cli.failure import UsageError
from iodaemon.errors import RequestError

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
        ({"input": "a"}, "--input needs space to go with"),
        ({"scratch": "0"}, "must be above 0"),
        ({"scratch": "x"}, "is not a size"),
        ({"scratch": "1G", "scratch_fallback": "slwo"}, "did you mean slow"),
        ({"scratch": "1G", "output_on": "never"}, "--output-on"),
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


def script(here, line, name="job.sh"):
    (here / name).write_text(f"#!/bin/sh\n#IOD {line}\nexec true\n")
    (here / name).chmod(0o755)


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
    script(here, "stdout=a output=b")
    assert (2, f"{FILE}: write one of them") == iod.fails("submit", "./job.sh")
    assert [] == daemon.bodies("/v1/jobs")


@pytest.mark.parametrize(
    ("line", "words", "stdout", "results"),
    [
        ("stdout=a", [], "a", None),
        ("output=a", [], "a", None),
        ("output=a", ["-o", "b"], "b", None),
        ("stdout=a", ["--output", "b"], "b", None),
        ("scratch=1G output=a stdout=b", [], "b", "a"),
        ("scratch=1G output=a", ["-o", "b"], "b", "a"),
        ("scratch=1G stdout=a", ["--output", "b"], "a", "b"),
        ("fast=1G", ["--output", "b"], None, "b"),
        ("output=a", ["--scratch", "1G"], None, "a"),
        ("stdout=a output=b", ["--fast", "1G"], "a", "b"),
    ],
)
def test_a_script_has_both_and_options_go_before_it(
    iod, daemon, here, line, words, stdout, results
):
    script(here, line)
    spec = sent(iod, daemon, *words, "./job.sh")

    assert (stdout and f"{here}/{stdout}") == spec.get("stdout")
    assert (results and f"{here}/{results}") == spec.get("scratch", {}).get("output_path")


def test_in_a_file_of_commands_a_line_has_both_too(iod, daemon, here):
    script(here, "scratch=1G output=own stdout=own.log")
    (here / "jobs.txt").write_text(
        "#IOD scratch=2G output=res\ntrue\n#IOD output=a\ntrue\n./job.sh\n"
    )
    sent(iod, daemon, "-o", "log.%j", "--from", "jobs.txt")
    [body] = daemon.bodies("/v1/jobs")
    found = [spec.get("scratch", {}).get("output_path") for spec in body["jobs"]]

    assert [f"{here}/log.%j"] * 3 == [spec["stdout"] for spec in body["jobs"]]
    assert [f"{here}/res", None, f"{here}/a"] == found


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
