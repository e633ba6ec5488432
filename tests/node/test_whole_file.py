"""A file has its name when it is whole, and nothing that is at that name is followed."""

import os

import pytest

from iodaemon.backend.linux.whole_file import whole_file


@pytest.fixture
def place(tmp_path):
    """A directory, open."""
    path = tmp_path / "place"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    yield path, descriptor
    os.close(descriptor)


def test_a_file_has_its_name_when_it_is_whole_and_before_it_another_that_is_hidden(place):
    path, descriptor = place
    with whole_file(descriptor, "a", 0o600) as file:
        file.write(b"text")
        [name] = os.listdir(path)

        assert name.startswith(".a.")
    assert ["a"] == os.listdir(path)
    assert b"text" == (path / "a").read_bytes()
    assert 0o600 == (path / "a").stat().st_mode & 0o777


def test_what_ends_in_the_middle_leaves_what_was_there(place):
    path, descriptor = place
    (path / "a").write_bytes(b"before")
    with pytest.raises(TypeError), whole_file(descriptor, "a", 0o600) as file:
        file.writelines([b"half", None])

    assert ["a"] == os.listdir(path)
    assert b"before" == (path / "a").read_bytes()


@pytest.mark.parametrize("lay", [os.symlink, os.link])
def test_a_link_at_its_name_is_replaced(place, tmp_path, lay):
    path, descriptor = place
    (tmp_path / "victim").write_bytes(b"as it was")
    lay(tmp_path / "victim", path / "a")
    with whole_file(descriptor, "a", 0o600) as file:
        file.write(b"text")

    assert b"as it was" == (tmp_path / "victim").read_bytes()
    assert b"text" == (path / "a").read_bytes()
    assert not (path / "a").is_symlink()


def test_it_goes_into_the_directory_that_is_open_whatever_is_at_its_path(place, tmp_path):
    path, descriptor = place
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.rename(tmp_path / "moved")
    path.symlink_to(elsewhere)
    with whole_file(descriptor, "a", 0o600) as file:
        file.write(b"text")

    assert [] == os.listdir(elsewhere)
    assert ["a"] == os.listdir(tmp_path / "moved")
