"""Files are whole, and what a killed process left is found by its name: nothing else is touched."""

import errno
import os

import pytest
from leaving import name_of

from iodaemon.files import (
    find_left,
    find_maker,
    make_directory,
    new_name,
    open_directory,
    remove_directory,
    whole_file,
)

PREFIX = "some-place"
SOMEBODY = 65534


def test_a_name_says_whose_it_is_and_no_two_are_one():
    first, second = new_name(PREFIX), new_name(PREFIX)

    assert first != second
    assert find_maker(first, PREFIX) == find_maker(second, PREFIX)
    assert str(os.getpid()) == find_maker(first, PREFIX).pid


@pytest.mark.parametrize(
    "name", ["", PREFIX, f"{PREFIX}.1", f"{PREFIX}.1.ab", f"{PREFIX}.x.ab.cd", f"other.{PREFIX}"]
)
def test_other_names_are_nobodys(name):
    assert find_maker(name, PREFIX) is None
    assert find_maker(f"{new_name(PREFIX)}.bak", PREFIX) is None
    assert find_maker(new_name(PREFIX), "some") is None


def test_what_a_dead_one_of_this_machine_left_is_found_and_nothing_else(tmp_path):
    dead = sorted(name_of(PREFIX) for _ in range(2))
    others = [
        name_of(PREFIX, is_elsewhere=True),  # of another container in the same directory
        name_of(PREFIX, pid=os.getpid()),
        name_of("another-place"),
        f"{PREFIX}.x",
    ]
    for name in (*dead, *others):
        (tmp_path / name).touch()

    assert [tmp_path / name for name in dead] == find_left(tmp_path, PREFIX)


def test_a_hidden_one_is_found_and_where_there_is_nothing_nothing(tmp_path):
    name = name_of(".hidden")
    (tmp_path / name).touch()

    assert [tmp_path / name] == find_left(str(tmp_path), ".hidden")
    assert [] == find_left(tmp_path / "missing", ".hidden")


def test_a_directory_is_made_once_and_for_its_user_alone(tmp_path):
    descriptor = make_directory(tmp_path / "a")
    mode = os.fstat(descriptor).st_mode & 0o777
    os.close(descriptor)

    assert 0o700 == mode
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "a")


def test_no_link_is_entered_and_nothing_of_somebody_else(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "link").symlink_to("victim")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is what tells
        open_directory(tmp_path / "link")
    assert caught.value.errno in {errno.ENOTDIR, errno.ELOOP}
    if os.geteuid() == 0:
        os.chown(tmp_path / "victim", SOMEBODY, SOMEBODY)
        with pytest.raises(PermissionError, match="belongs to somebody else"):
            open_directory(tmp_path / "victim")


def test_a_directory_goes_by_whatever_name_it_has_now_and_links_in_it_lead_nowhere(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    descriptor = make_directory(tmp_path / "a")
    (tmp_path / "a/below/deep").mkdir(parents=True)
    (tmp_path / "a/below/link").symlink_to(victim)
    (tmp_path / "a/link").symlink_to(victim)
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "a").symlink_to(victim)
    remove_directory(descriptor)
    os.close(descriptor)

    assert ["a", "victim"] == sorted(os.listdir(tmp_path))
    assert ["file"] == os.listdir(victim)


# -- whole files -----------------------------------------------------------------------------------


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
