"""What staging leaves alone, what it notices, and that what it says is there is on the disk."""

import os
import stat
from pathlib import Path

import pytest

from iodaemon.backend.linux import stage_batch, stage_file
from iodaemon.backend.linux.manifest import Manifest, open_manifest
from iodaemon.backend.linux.stage import Output, StageError, Target, copy_in, copy_out, sweep

pytestmark = pytest.mark.node


@pytest.fixture
def place(tmp_path):
    """An input with links and directories, one or two directories of a job, an output, books."""
    for name in ("in/sub/deep", "in/empty", "disk", "other", "out", "books"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "in" / "a").write_text("a")
    (tmp_path / "in" / "sub" / "b").write_text("b")
    (tmp_path / "in" / "sub" / "deep" / "c").write_text("c")
    (tmp_path / "in" / "lnk").symlink_to("sub/b")
    (tmp_path / "in" / "dir").symlink_to("sub")
    return tmp_path


def book(place, step):
    return Manifest(open_manifest(str(place / "books"), step))


def bring(place, *, rooms=(1 << 20,), tell=lambda word: None):
    """Copy in, to as many disks as there are rooms."""
    disks = [
        Target(str(place / name), room)
        for name, room in zip(("disk", "other"), rooms, strict=False)
    ]
    copy_in(str(place / "in"), disks, book(place, "in"), tell)


def fetch(place, *, mark="1-1-a", tell=lambda word: None, sources=("disk",)):
    """Copy out."""
    paths = [str(place / name) for name in sources]
    output = Output(str(place / "out"), mark)
    copy_out(paths, output, book(place, "in"), book(place, "out"), tell)


def names(top):
    return sorted(str(path.relative_to(top)) for path in Path(top).rglob("*"))


class Interfering:
    """Does something as soon as so many words of progress have been told."""

    def __init__(self, act):
        self._act = act
        self.is_done = False

    def __call__(self, word):
        if not self.is_done and word["total_files"]:  # counted, and nothing copied yet
            self.is_done = True
            self._act()


# -- what came in and was not touched --------------------------------------------------------------


def test_what_came_in_and_is_untouched_is_not_copied_out(place):
    bring(place)
    fetch(place)

    assert [] == names(place / "out")


def test_an_untouched_link_takes_the_place_of_nothing(place):
    (place / "out" / "lnk").write_text("the user's")
    bring(place)
    (place / "disk" / "new").write_text("new")
    fetch(place)

    assert ["lnk", "new"] == names(place / "out")
    assert "the user's" == (place / "out" / "lnk").read_text()
    assert not (place / "out" / "lnk").is_symlink()


def test_new_and_changed_links_and_new_directories_are_copied_out(place):
    bring(place)
    (place / "disk" / "lnk").unlink()
    (place / "disk" / "lnk").symlink_to("a")
    (place / "disk" / "fresh").symlink_to("nowhere")
    (place / "disk" / "made" / "empty").mkdir(parents=True)
    fetch(place)

    assert ["fresh", "lnk", "made", "made/empty"] == names(place / "out")
    assert ("a", "nowhere") == tuple(os.readlink(place / "out" / n) for n in ("lnk", "fresh"))


def test_a_new_link_takes_the_place_of_a_file_of_its_name_as_a_file_does(place):
    (place / "out" / "x").write_text("old")
    (place / "disk" / "x").symlink_to("target")
    fetch(place)

    assert "target" == os.readlink(place / "out" / "x")


def test_two_links_of_one_name_are_not_merged(place):
    (place / "disk" / "x").symlink_to("1")
    (place / "other" / "x").symlink_to("2")
    with pytest.raises(StageError, match="two of the job's directories have"):
        fetch(place, sources=("disk", "other"))


def test_of_directories_that_came_in_only_those_are_made_that_something_is_in(place):
    bring(place)
    (place / "in" / "sub").chmod(0o750)
    (place / "disk" / "sub" / "deep" / "new").write_text("new")
    (place / "disk" / "sub").chmod(0o750)
    fetch(place)

    assert ["sub", "sub/deep", "sub/deep/new"] == names(place / "out")
    assert 0o750 == stat.S_IMODE((place / "out" / "sub").stat().st_mode)


def test_a_file_of_the_same_length_and_change_time_is_a_new_one(place, monkeypatch):
    """A clock that is read every few milliseconds stands still between the two."""
    os.utime(place / "in" / "a", ns=(1, 1_000_000_000))
    bring(place)
    came = book(place, "in")
    before = came.copied["a"]
    (place / "disk" / "a").write_text("A")
    changed = (place / "disk" / "a").stat()
    came.add(before._replace(ctime_ns=changed.st_ctime_ns))
    fetch(place)

    assert "A" == (place / "out" / "a").read_text()


# -- what was there before -------------------------------------------------------------------------


def test_a_directory_that_is_there_keeps_its_mode_and_time(place):
    (place / "out" / "sub").mkdir()
    (place / "out" / "sub").chmod(0o2775)
    bring(place)
    (place / "disk" / "sub" / "new").write_text("new")
    fetch(place)

    assert 0o2775 == stat.S_IMODE((place / "out" / "sub").stat().st_mode)
    assert "new" == (place / "out" / "sub" / "new").read_text()


def test_a_directory_that_is_made_belongs_to_the_group_that_it_is_in(place):
    (place / "out").chmod(0o2775)
    (place / "disk" / "d").mkdir(mode=0o750)
    fetch(place)

    assert 0o2750 == stat.S_IMODE((place / "out" / "d").stat().st_mode)


def test_a_directory_of_an_earlier_try_is_finished_by_the_next(place, monkeypatch):
    (place / "disk" / "d").mkdir(mode=0o755)
    (place / "disk" / "d" / "x").write_text("x")
    monkeypatch.setattr(stage_batch, "sync", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetch(place)
    monkeypatch.undo()
    half = stat.S_IMODE((place / "out" / "d").stat().st_mode)
    fetch(place)

    assert (0o700, 0o755) == (half, stat.S_IMODE((place / "out" / "d").stat().st_mode))


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("elsewhere")])
def test_what_is_in_the_way_of_a_directory_is_named_and_left(place, make):
    (place / "out" / "elsewhere").mkdir()
    make(place / "out" / "d")
    (place / "disk" / "d").mkdir()
    (place / "disk" / "d" / "x").write_text("x")
    with pytest.raises(StageError, match="is there and is no directory"):
        fetch(place)

    assert ["d", "elsewhere"] == names(place / "out")


def test_two_jobs_with_one_output_do_not_touch_each_others_halves(place, monkeypatch):
    (place / "disk" / "x").write_text("first")
    (place / "other" / "x").write_text("second")
    sync, between = stage_batch.sync, []

    def interrupted(path):
        if not between:
            between.extend(names(place / "out"))
            nothing = book(place, "none")
            output = Output(str(place / "out"), "2-1-b")
            copy_out([str(place / "other")], output, nothing, nothing, lambda word: None)
            between.append((place / "out" / "x").read_text())
        sync(path)

    monkeypatch.setattr(stage_batch, "sync", interrupted)
    fetch(place)

    part, second = between
    assert part.startswith(".iod-part.1-1-a.")
    assert "second" == second
    assert ["x"] == names(place / "out")
    assert "first" == (place / "out" / "x").read_text()


def test_what_a_try_that_was_killed_has_left_can_be_swept(place, monkeypatch):
    bring(place)
    (place / "disk" / "sub" / "new").write_text("new")
    (place / "disk" / "fresh").symlink_to("x")
    monkeypatch.setattr(stage_batch.Batch, "__exit__", lambda *_: None)
    monkeypatch.setattr(stage_batch, "sync", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetch(place)
    left = [name for name in names(place / "out") if ".iod-part." in name]
    foreign = place / "out" / ".iod-part.2-1-b.0123"
    foreign.touch()
    sweep([str(place / "disk")], Output(str(place / "out"), "1-1-a"))

    assert 2 == len(left)
    assert [foreign.name, "sub"] == names(place / "out")


# -- what changes meanwhile ------------------------------------------------------------------------


def test_a_file_that_vanishes_before_it_is_copied_is_missed(place):
    with pytest.raises(StageError, match=r"sub/b' vanished"):
        bring(place, tell=Interfering((place / "in" / "sub" / "b").unlink))


@pytest.mark.parametrize(
    ("what", "line"),
    [
        (lambda top: (top / "a").write_text("A"), "a' changed"),
        (lambda top: (top / "sub" / "deep" / "c").unlink(), "c' vanished"),
        (lambda top: (top / "sub" / "more").touch(), "more' appeared"),
        (lambda top: (top / "empty").rmdir(), "empty' vanished"),
        (lambda top: (top / "lnk").unlink(), "lnk' vanished"),
        (lambda top: [(top / "a").unlink(), (top / "a").mkdir()], "a' changed"),
    ],
)
def test_what_changes_after_it_was_copied_is_noticed(place, monkeypatch, what, line):
    sync = stage_batch.sync

    def meddle(path):
        what(place / "in")
        sync(path)

    monkeypatch.setattr(stage_batch, "sync", meddle)
    with pytest.raises(StageError, match=line):
        bring(place)

    assert not book(place, "in").is_whole


def test_a_file_that_is_changed_back_in_length_and_time_is_noticed(place, monkeypatch):
    (place / "in" / "a").write_text("a")
    before = (place / "in" / "a").stat()
    sync = stage_batch.sync

    def meddle(path):
        (place / "in" / "a").write_text("b")
        os.utime(place / "in" / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
        sync(path)

    monkeypatch.setattr(stage_batch, "sync", meddle)
    os.utime(place / "in" / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StageError, match="a' changed"):
        bring(place)


# -- what is on the disk ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [bring, fetch])
def test_what_is_read_back_as_something_else_fails_the_step(place, monkeypatch, step):
    (place / "disk" / "new").write_text("new")
    seen = []

    def spoiled(path, *, from_disk, at):
        seen.append(from_disk)
        return stage_file.hash_file(path, from_disk=from_disk, at=at)[::-1]

    monkeypatch.setattr(stage_batch, "hash_file", spoiled)
    with pytest.raises(StageError, match="read back is not what was written"):
        step(place)

    assert [True] == seen
    assert not book(place, "in").is_whole
    assert [] == names(place / "out")


def test_a_step_says_that_it_has_done_all_and_nothing_else_does(place):
    before = book(place, "in").is_whole
    bring(place, rooms=(1 << 20, 1 << 20))
    after = book(place, "in").is_whole
    (place / "disk" / "new").write_text("new")
    fetch(place, sources=("disk", "other"))

    assert (False, True, True) == (before, after, book(place, "out").is_whole)
    assert {"file", "link", "directory"} == {c.kind for c in book(place, "in").copied.values()}
