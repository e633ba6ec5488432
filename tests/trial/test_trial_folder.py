"""Where results are kept, whoever else writes there."""

import os

import pytest

from iodaemon.errors import RequestError
from iodaemon.trial.folder import Folder

SOMEBODY = 65534
of_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.mkdir()
    (path / "results.json").write_text("as it was")
    return path


def folder(tmp_path):
    return Folder(path=tmp_path / "iod-compare/w", own=2)


def refused(made):
    said = []
    for attempt in (made.check, lambda: made.keep({"results.json": b"new"})):
        with pytest.raises(RequestError) as caught:
            attempt()
        said.append(str(caught.value))
    first, second = said

    assert first == second
    assert "--output" in first
    assert "\n" not in first
    return first


def test_a_folder_is_made_when_there_is_something_to_keep(tmp_path):
    made = folder(tmp_path)
    made.check()

    assert [] == os.listdir(tmp_path)
    made.keep({"a": b"1", "b": b"2"})
    made.keep({"a": b"3"})
    made.check()
    found = {path.name: path.read_bytes() for path in made.path.iterdir()}
    assert {"a": b"3", "b": b"2"} == found


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path, victim):
    made = folder(tmp_path)
    made.path.mkdir(parents=True)
    (made.path / "results.json").symlink_to(victim / "results.json")
    made.keep({"results.json": b"new"})

    assert "as it was" == (victim / "results.json").read_text()
    assert b"new" == (made.path / "results.json").read_bytes()


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path, victim):
    made = folder(tmp_path)
    made.path.parent.mkdir()
    made.path.symlink_to(victim)

    assert f"{made.path} is a link" in refused(made)
    made.path.unlink()
    made.path.parent.rmdir()
    made.path.parent.symlink_to(victim)
    assert f"{made.path.parent} is a link" in refused(made)
    assert ["results.json"] == os.listdir(victim)


def test_a_link_above_that_one_has_named_is_followed(tmp_path, victim):
    (tmp_path / "link").symlink_to(victim)
    Folder(path=tmp_path / "link/some").keep({"a": b"1"})

    assert (victim / "some/a").exists()


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    made = folder(tmp_path)
    made.path.parent.mkdir()
    made.path.touch()

    assert f"{made.path} is no directory" in refused(made)
    with pytest.raises(RequestError, match="is no directory"):
        Folder(path=made.path / "below").check()


@of_root
@pytest.mark.parametrize("part", ["iod-compare", "iod-compare/w"])
def test_a_folder_of_somebody_elses_is_refused(tmp_path, part):
    made = folder(tmp_path)
    made.path.mkdir(parents=True)
    os.chown(tmp_path / part, SOMEBODY, SOMEBODY)

    assert f"{tmp_path / part} belongs to nobody, not to you" in refused(made)
