"""``iod submit --scratch``, ``#IOD scratch=``, and ``iod scratch remove``."""

import pytest

from iodaemon.cli.failure import UsageError
from iodaemon.cli.said import parse_lines
from iodaemon.cli.scratch_option import measure, scratch_options
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


def test_with_scratch_the_output_is_a_directory_only_where_that_is_clear(tmp_path):
    (tmp_path / "there").mkdir()

    assert f"{tmp_path}/there" == options(tmp_path, scratch="1", output="there")["output_path"]
    assert f"{tmp_path}/new" == options(tmp_path, scratch="1", output="new/")["output_path"]
    assert "output_path" not in options(tmp_path, scratch="1", output="words.txt")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"scratch": "1G", "fast": "1G"}, "both ask for space"),
        ({"fast": "1G", "tier": "a"}, "--fast leaves the tier to iodaemon"),
        ({"tier": "a"}, "--tier needs space to go with"),
        ({"input": "a"}, "--input needs space to go with"),
        ({"scratch": "0"}, "must be more than nothing"),
        ({"scratch": "x"}, "is not a size"),
        ({"scratch": "1G", "scratch_fallback": "slwo"}, "did you mean slow"),
        ({"scratch": "1G", "output_on": "never"}, "--output-on"),
        ({"scratch": "1G", "output_on": "always"}, "needs a directory of results"),
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


def test_a_script_says_the_same():
    said = parse_lines([(1, "#IOD scratch=200G tier=fast scratch-fallback=slow")], "job.sh")

    assert {"scratch": "200G", "tier": "fast", "scratch-fallback": "slow"} == said.options
    with pytest.raises(UsageError, match=r"job.sh:1: #IOD: --scratch: 'x' is not a size"):
        parse_lines([(1, "#IOD scratch=x")], "job.sh")


def test_submit_sends_it(iod, daemon):
    result = iod("submit", "--scratch", "2G", "--tier", "fast", "--", "true")

    assert 0 == result.code
    [sent] = [body for verb, path, body in daemon.seen if (verb, path) == ("POST", "/v1/jobs")]
    assert {"size_bytes": 2 * GIB, "tier": "fast"} == sent["jobs"][0]["scratch"]


@pytest.mark.parametrize("output", ["in/a", "in/a/deep", "dangling"])
def test_an_output_where_a_file_is_in_the_way_is_refused(tmp_path, output):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").touch()
    (tmp_path / "dangling").symlink_to("nowhere")

    with pytest.raises(RequestError, match=r"--output: .* is no directory; nothing was submitted"):
        options(tmp_path, fast="1G", output=output)


def test_what_is_above_a_link_is_above_where_it_leads(tmp_path):
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "data").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("far/deep")
    asked = options(tmp_path, fast="1G", input="link/../data", output="link/../out")

    assert f"{tmp_path}/far/data" == asked["input_path"]
    assert f"{tmp_path}/far/out" == asked["output_path"]
    assert f"{tmp_path}/link" == options(tmp_path, fast="1G", input="./link/")["input_path"]
