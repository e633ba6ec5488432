"""What ``iod compare`` says, without running anything."""

import os
import sys

import msgspec
import pytest

from iodaemon.cli import compare, output
from iodaemon.cli.compare import verdict_words
from iodaemon.cli.program import run
from iodaemon.errors import RequestError
from iodaemon.simulator.draw import lacking
from iodaemon.simulator.experiment import Figure, Series
from iodaemon.trial.folder import Folder
from iodaemon.trial.site import check_room, find_disks, find_services
from iodaemon.trial.summary import Change

PICTURE = Figure(
    name="some",
    title="some",
    x_label="x",
    y_label="y",
    kind="line",
    series=(Series(label="a", x=(1.0, 2.0), y=(1.0, 2.0)),),
)


def change(**values):
    made = {
        "measure": "makespan_s",
        "policy": "dynamic",
        "base": "none",
        "rounds": 6,
        "ratio": 0.88,
        "low": 0.8,
        "high": 1.01,
        "p": 0.031,
        "verdict": "better",
    }
    return Change(**{**made, **values})


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("better", "better (p 0.03)"),
        ("noise", "within the noise (p 0.03)"),
        ("too few rounds", "too few rounds to tell"),
        ("same", "the same"),
    ],
)
def test_a_verdict_says_the_chance_where_there_is_one(verdict, words):
    assert words == verdict_words(change(verdict=verdict))


@pytest.fixture
def clock(monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(compare.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(output, "TOLD_S", 0.0)
    return now_s


def test_the_time_left_is_that_of_the_rounds_that_are_done(clock, capsys):
    telling = compare.Telling(per_round=2)
    for done, at_s in ((0, 1001.0), (1, 1002.0), (2, 1012.0), (2, 1015.0), (3, 1022.0)):
        clock[0] = at_s
        telling.tell_run("a run", done, 6, {"R": 1})

    *first, begun, later, second_round = capsys.readouterr().err.splitlines()
    assert all("left" not in line for line in first)
    assert "about 24 s left" in begun
    assert "about 21 s left" in later
    assert "about 14 s left" in second_round


@pytest.mark.parametrize("can_last", [True, False])
def test_what_to_do_about_a_job_that_does_not_end_is_said_once(clock, capsys, can_last):
    telling = compare.Telling(3, can_last=can_last)
    for at_s in (1000.0, 1059.0, 1061.0, 1200.0):
        clock[0] = at_s
        telling.tell_run("round 1 of 6, long alone", 0, 6, {"R": 1})

    said = capsys.readouterr().err
    assert int(can_last) == said.count("round 1 of 6, long alone takes longer than 60 s")
    assert int(can_last) == said.count("Ctrl-C ends the trial, and time = ")


@pytest.mark.parametrize("text", ["0", "-1", "x", "1001", "1.5", "²"])
def test_rounds_that_make_no_sense_are_a_wrong_word(text):
    assert 2 == run(["compare", "w.toml", f"--rounds={text}"])


def test_a_workload_must_be_named_and_there(capsys):
    assert run(["compare"]) == 2
    assert run(["compare", "/nowhere/none.toml"]) == 3
    assert "no workload file /nowhere/none.toml" in capsys.readouterr().err


def test_a_policy_that_is_not_there_or_named_twice_is_refused(tmp_path, capsys):
    file = tmp_path / "w.toml"
    file.write_text('[[job]]\nkernel = "compute"\nrounds = 1\n')

    assert run(["compare", str(file), "--policies", "none,none"]) == 2
    assert run(["compare", str(file), "--policies", "none,nix"]) == 3
    assert "no policy 'nix'" in capsys.readouterr().err


def test_where_figures_cannot_be_drawn_there_are_bars(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert ["", "a bar"] == compare.draw([PICTURE], Folder(path=tmp_path), ["a bar"])
    told = f"results are in {tmp_path}; {lacking()}\n"
    assert f"iod: {told}" == capsys.readouterr().err


def test_what_is_wrong_with_a_figure_is_not_taken_for_a_missing_library(tmp_path):
    wrong = msgspec.structs.replace(PICTURE, series=())

    with pytest.raises(RequestError, match="nothing to draw"):
        compare.draw([wrong], Folder(path=tmp_path), ["a bar"])


def test_figures_are_drawn_as_svg_and_png_in_place_of_links(tmp_path):
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.write_text("as it was")
    place.mkdir()
    (place / "some.svg").symlink_to(victim)

    assert compare.draw([PICTURE], Folder(path=place), ["a bar"]) == []
    assert {"some.svg", "some.png"} == {path.name for path in place.iterdir()}
    assert "as it was" == victim.read_text()


MISTAKES = {
    "socket": ('[topology]\nsockets = ["0", "4095"]\n', "w.toml: [topology] sockets: '4095'"),
    "width": ("", "w.toml [[job]] 2 (wide): 9999 cpus, a socket "),
}
WIDE = '[[job]]\nkernel = "compute"\nrounds = 1\n[[job]]\nname = "wide"\ncommand = ["true"]\n'


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_does_not_fit_the_machine_is_told_before_anything_is_made(
    tmp_path, monkeypatch, capsys, mistake
):
    monkeypatch.chdir(tmp_path)
    head, words = MISTAKES[mistake]
    cpus = "cpus = 9999\n" if mistake == "width" else ""
    (tmp_path / "w.toml").write_text(head + WIDE + cpus)

    assert run(["compare", "w.toml", "--force"]) in (1, 2)
    said = capsys.readouterr().err
    assert words in said
    assert "--cpus" not in said
    assert 1 == len(said.splitlines())
    assert ["w.toml"] == os.listdir()


def refused(capsys, *words):
    assert run([*words, "--force"]) == 1
    [said] = capsys.readouterr().err.splitlines()
    return said


def test_a_folder_of_results_that_is_a_link_is_refused_before_anything_is_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.toml").write_text(WIDE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "iod-compare").symlink_to("elsewhere")

    assert "iod-compare is a link" in refused(capsys, "compare", "w.toml")
    assert [] == os.listdir("elsewhere")


def test_a_calibration_that_cannot_be_read_is_left_out_and_told(tmp_path):
    disks = find_disks(tmp_path)
    file = tmp_path / "calibration.json"
    file.write_text("no calibration")
    services, words = find_services(disks, file)

    assert {} == services
    assert "what was calibrated is left out" in words
    assert ({}, "") == find_services(disks, None)


def test_a_directory_that_cannot_take_the_files_is_refused(tmp_path):
    with pytest.raises(RequestError, match="is no directory"):
        find_disks(tmp_path / "none")
    with pytest.raises(RequestError, match="free, the files of this workload take"):
        check_room(tmp_path, 1 << 60)
