"""What others do in a directory that results are copied to leads to nothing of the user's."""

import os
import stat

import pytest
from keeping import NOBODY
from scratching import needs_root

from iodaemon.backend.linux import stage_batch, stage_file
from iodaemon.backend.linux.manifest import Manifest, open_manifest
from iodaemon.backend.linux.stage import Output, StageError, copy_out, sweep
from iodaemon.backend.linux.stage_place import Place

pytestmark = pytest.mark.node


@pytest.fixture
def place(tmp_path):
    """A job's directory with something new, an output, and what is private."""
    for name in ("disk/sub", "out", "private", "books"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "disk" / "sub" / "a").write_text("new")
    (tmp_path / "disk" / "sub").chmod(0o777)
    (tmp_path / "private" / "a").write_text("precious")
    (tmp_path / "private").chmod(0o700)
    return tmp_path


def fetch(place, output="out"):
    came, copied = (Manifest(open_manifest(str(place / "books"), step)) for step in ("in", "out"))
    target = Output(str(place / output), "1-1-a")
    copy_out([str(place / "disk")], target, came, copied, lambda word: None)


def test_an_output_that_cannot_be_made_is_told_as_one(place):
    with pytest.raises(StageError, match=r"'/proc/x/y' cannot be made: 'x' can be in no such"):
        fetch(place, "/proc/x/y")


def swap(place, *, for_link):
    """As who may write to the output, and has a directory, or makes a link."""
    (place / "out" / "sub").rename(place / "out" / "aside")
    if for_link:
        (place / "out" / "sub").symlink_to(place / "private")
    else:
        (place / "out" / "sub").mkdir(mode=0o700)


def is_untouched(place):
    private = place / "private"
    mode = stat.S_IMODE(private.stat().st_mode)
    return (mode, os.listdir(private), (private / "a").read_text()) == (0o700, ["a"], "precious")


@pytest.mark.parametrize("for_link", [True, False])
@pytest.mark.parametrize("when", ["sync", "given"])
def test_a_directory_that_becomes_another_is_not_written_nor_changed(
    place, monkeypatch, for_link, when
):
    sync = stage_batch.sync

    def meddle(top):
        swap(place, for_link=for_link)
        sync(top)

    if when == "given":  # the last that is done before modes are given
        publish = stage_batch.Batch.publish

        def late(batch):
            publish(batch)
            if not (place / "out" / "aside").exists():
                swap(place, for_link=for_link)

        monkeypatch.setattr(stage_batch.Batch, "publish", late)
    else:
        monkeypatch.setattr(stage_batch, "sync", meddle)
    line = "is no directory" if for_link else "became another directory"
    with pytest.raises(StageError, match=line):
        fetch(place)

    assert is_untouched(place)
    assert for_link or 0o700 == stat.S_IMODE((place / "out" / "sub").stat().st_mode)


def test_a_directory_that_becomes_a_link_as_soon_as_it_is_made_is_not_entered(place, monkeypatch):
    hold = Place.hold

    def late(self, name):
        swap(place, for_link=True)
        hold(self, name)

    monkeypatch.setattr(Place, "hold", late)
    with pytest.raises(StageError, match="is no directory"):
        fetch(place)

    assert is_untouched(place)


def test_halves_are_not_looked_for_behind_a_link(place):
    (place / "out" / "sub").symlink_to(place / "private")
    part = stage_batch.part_of(str(place / "out" / "sub" / "a"), "1-1-a")
    (place / "private" / os.path.basename(part)).touch()
    sweep([str(place / "disk")], Output(str(place / "out"), "1-1-a"))

    assert 2 == len(os.listdir(place / "private"))


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("kind", ["output", "above", "within", "link"])
def test_what_somebody_else_put_where_everybody_may_is_refused(place, mode, kind):
    there = place / "out" / ("sub" if kind == "within" else "there")
    there.mkdir() if kind != "link" else there.symlink_to(place / "private")
    os.chown(there, NOBODY.pw_uid, NOBODY.pw_gid, follow_symlinks=False)
    (place / "out").chmod(mode)
    output = {"above": "out/there/deeper", "within": "out"}.get(kind, "out/there")
    with pytest.raises(StageError, match="somebody else put it"):
        fetch(place, output)

    assert is_untouched(place)
    assert kind == "link" or [] == os.listdir(there)


@needs_root
def test_of_others_is_taken_what_they_made_where_only_they_or_a_group_may(place):
    for name, mode in (("group", 0o2775), ("theirs", 0o1777)):
        (place / name / "sub").mkdir(parents=True)
        (place / name).chmod(mode)
        os.chown(place / name / "sub", NOBODY.pw_uid, NOBODY.pw_gid)
    os.chown(place / "theirs", NOBODY.pw_uid, NOBODY.pw_gid)
    fetch(place, "group")
    fetch(place, "theirs")

    assert "new" == (place / "group" / "sub" / "a").read_text()
    assert "new" == (place / "theirs" / "sub" / "a").read_text()


@pytest.mark.parametrize("kind", ["absolute", "relative", "dots", "missing"])
def test_an_output_is_found_as_the_kernel_would(place, kind):
    (place / "there").mkdir()
    (place / "absolute").symlink_to(place / "there")
    (place / "relative").symlink_to("out/../there")
    path = {"dots": "out/.././there/", "missing": "there"}.get(kind, kind) + "/x/y"
    fetch(place, path)

    assert "new" == (place / "there" / "x" / "y" / "sub" / "a").read_text()


def test_links_that_lead_round_in_a_circle_are_told(place):
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(StageError, match="Too many levels of symbolic links"):
        fetch(place, "a/x")


def test_no_descriptors_are_left_open(place):
    for number in range(20):
        (place / "disk" / "sub" / f"{number}" / "deep").mkdir(parents=True)
        (place / "disk" / "sub" / f"{number}" / "deep" / "a").touch()
    before = os.listdir("/proc/self/fd")
    with Place(str(place / "new" / "out"), makes=True) as new:
        new.enter("")
    (place / "out" / "sub").write_text("in the way")
    with pytest.raises(StageError, match="is no directory"):
        fetch(place)
    fetch(place, "new/out")
    books = 2 * 2  # of manifests, which are the caller's

    assert len(before) + books == len(os.listdir("/proc/self/fd"))
    assert 20 == len(os.listdir(place / "new" / "out" / "sub")) - 1


def test_no_more_of_a_file_that_grows_is_written_than_it_had(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"x" * (1 << 20))
    sizes = []

    def grow(_):
        sizes.append(target.stat().st_size)
        with source.open("ab") as file:
            file.write(b"x" * (1 << 20))

    with pytest.raises(StageError, match="changed while it was copied"):
        stage_file.copy_file(str(source), str(target), grow)

    assert [1 << 20] == sizes
    assert not target.exists()
