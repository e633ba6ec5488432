"""Files go where they are to, whatever others have laid there."""

import os
import sys
from pathlib import Path

import pytest
from calibrating import calibration

from iodaemon.calibration.store import keep, kept_file, load, put
from iodaemon.cli import main
from iodaemon.cli.calibrate import draw_figure
from iodaemon.errors import ConfigError, RequestError

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def victim(tmp_path):
    """A file that nobody may write to by way of a link; asserted to be as it was."""
    file = tmp_path / "victim"
    file.write_bytes(b"mine")
    file.chmod(0o600)
    yield file
    assert file.read_bytes() == b"mine"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_is_put_whole_where_there_was_none(tmp_path):
    folder = tmp_path / "some/where"

    (path,) = put(folder, {"a": b"text"})

    assert path == folder / "a"
    assert path.read_bytes() == b"text"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(folder) == ["a"]


def test_a_link_of_that_name_is_replaced_and_not_followed(tmp_path, victim):
    (tmp_path / "a").symlink_to(victim)

    (path,) = put(tmp_path, {"a": b"text"})

    assert not path.is_symlink()
    assert path.read_bytes() == b"text"


def test_another_name_of_a_file_is_given_up_and_not_written_to(tmp_path, victim):
    os.link(victim, tmp_path / "a")

    put(tmp_path, {"a": b"text"})


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for name, target in (("there", other), ("dangling", tmp_path / "nothing")):
        (tmp_path / name).symlink_to(target)

        with pytest.raises(RequestError, match=f"{name} is a link") as error:
            put(tmp_path / name, {"a": b"text"})

        assert "\n" not in str(error.value)
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="no directory"):
        put(tmp_path / "file", {"a": b"text"})
    assert os.listdir(other) == []
    assert not (tmp_path / "nothing").exists()


def test_what_cannot_be_put_leaves_nothing(tmp_path):
    (tmp_path / "a").mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        put(tmp_path, {"a": b"text"})

    assert os.listdir(tmp_path) == ["a"]


@needs_root
def test_what_lies_in_somebodys_directory_is_theirs(tmp_path):
    os.chown(tmp_path, NOBODY, NOBODY)

    (path,) = put(tmp_path / "figures", {"a": b"text"})
    file = keep(tmp_path, calibration())

    for each in (path, path.parent, file):
        assert (each.stat().st_uid, each.stat().st_gid) == (NOBODY, NOBODY)


@needs_root
def test_a_full_directory_that_was_put_there_meanwhile_is_not_given_away(tmp_path, monkeypatch):
    theirs, roots = tmp_path / "theirs", tmp_path / "roots"
    for directory in (theirs, roots):
        directory.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    (roots / "kept").touch()
    make = Path.mkdir

    def make_and_be_outrun(path, *words, **more):
        make(path, *words, **more)
        if path == theirs / "new":
            path.rmdir()
            roots.rename(path)

    monkeypatch.setattr(Path, "mkdir", make_and_be_outrun)
    put(theirs / "new", {"a": b"text"})

    assert (theirs / "new").stat().st_uid == 0


def test_a_figure_follows_no_link(tmp_path, victim):
    pytest.importorskip("matplotlib")
    first = draw_figure(calibration(), tmp_path)
    for path in first:
        path.unlink()
        path.symlink_to(victim)

    drawn = draw_figure(calibration(), tmp_path)

    assert drawn == first
    assert [path.name for path in drawn] == [
        "figure-14-sda-data-9ecd9332.svg",
        "figure-14-sda-data-9ecd9332.png",
    ]
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert not any(path.is_symlink() for path in drawn)
    assert sorted(os.listdir(tmp_path)) == sorted([*(p.name for p in drawn), "victim"])


def test_a_figure_that_is_asked_for_and_cannot_be_drawn_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    config = tmp_path / "config.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\nruntime_dir = "{tmp_path}/run"\n')
    keep(tmp_path / "state", calibration())

    code = main(["--config", str(config), "calibrate", "--show", "--figure", str(tmp_path)])

    assert code == 1
    assert "iod calibrate --show PATH --figure DIR" in capsys.readouterr().err


def test_a_kept_file_that_is_a_link_or_a_pipe_is_refused_and_nobody_waits(tmp_path, victim):
    file = kept_file(tmp_path)
    file.symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link, and not followed; remove it"):
        load(tmp_path)
    file.unlink()
    os.mkfifo(file)

    with pytest.raises(ConfigError, match="is no ordinary file; remove it"):
        load(tmp_path)
