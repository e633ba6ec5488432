"""A step of staging that was killed goes on where it was, and believes only what it verified."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.backend.linux.manifest import Copied, Manifest, open_manifest
from iodaemon.backend.linux.stage import Output, StageError, Target, copy_in, copy_out
from iodaemon.fault import VARIABLE

pytestmark = pytest.mark.node

FILES = 20
STEP = """
import json, os, sys
from iodaemon.backend.linux import stage, stage_batch
from iodaemon.backend.linux.manifest import Manifest, open_manifest
step, source, target, books = sys.argv[1:]
stage_batch.MOST_FILES = 4
book = Manifest(open_manifest(books, step))
if step == "in":
    stage.copy_in(source, [stage.Target(target, 1 << 30)], book, lambda word: None)
else:
    empty = Manifest(open_manifest(books, "none"))
    stage.copy_out([source], stage.Output(target, "1-1-a"), empty, book, lambda word: None)
"""


@pytest.fixture
def place(tmp_path):
    for name in ("from", "to", "books", "faults"):
        (tmp_path / name).mkdir()
    (tmp_path / "from" / "sub").mkdir()
    for number in range(FILES):
        (tmp_path / "from" / "sub" / f"{number:02}").write_bytes(os.urandom(5_000))
    return tmp_path


def run(place, step):
    """The step, in a process that may be armed; how it ended."""
    words = [step, *(str(place / name) for name in ("from", "to", "books"))]
    environment = {**os.environ, VARIABLE: str(place / "faults")}
    done = subprocess.run([sys.executable, "-c", STEP, *words], env=environment, check=False)
    return done.returncode


def contents(top):
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else None
        for path in Path(top).rglob("*")
    }


@pytest.mark.parametrize(
    ("step", "point"),
    [("in", "stage.piece"), ("in", "stage.copied"), ("in", "stage.noted")]
    + [("out", f"stage.{word}") for word in ("piece", "part", "synced", "named", "noted")],
)
def test_what_was_killed_in_the_middle_is_complete_after_another_try(place, step, point):
    passage = 2 if point in ("stage.synced", "stage.noted") else 8
    (place / "faults" / point).write_text(f"{passage} 9")
    killed = run(place, step)
    after_death = contents(place / "to")
    again = run(place, step)

    whole = contents(place / "from")
    assert (-9, 0) == (killed, again)
    assert whole == contents(place / "to")
    named = {name: data for name, data in after_death.items() if ".iod-part." not in name}
    if step == "out":
        assert named.items() <= whole.items()


def test_files_that_are_there_are_not_copied_again(place):
    (place / "faults" / "stage.noted").write_text("3 9")
    run(place, "in")
    numbers = {path.name: path.stat().st_ino for path in (place / "to" / "sub").iterdir()}
    run(place, "in")
    later = {path.name: path.stat().st_ino for path in (place / "to" / "sub").iterdir()}

    assert FILES == len(later)
    assert 3 * 4 - 1 == len(numbers.items() & later.items())  # the directory is one of a batch


def test_a_copy_that_was_damaged_meanwhile_is_made_again(place):
    """Of the same length and time: only what is in it tells."""
    run(place, "in")
    victim = place / "to" / "sub" / "07"
    before = victim.stat()
    victim.write_bytes(b"x" * 5_000)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    run(place, "in")

    assert contents(place / "from") == contents(place / "to")


def test_a_source_that_changed_between_two_tries_is_copied_again(place):
    run(place, "out")
    (place / "from" / "sub" / "03").write_bytes(b"new")
    run(place, "out")

    assert b"new" == (place / "to" / "sub" / "03").read_bytes()


def test_a_line_that_a_death_cut_short_counts_for_nothing(place):
    book = Manifest(open_manifest(str(place / "books"), "in"))
    book.add(Copied("a", 1, 2, "d", 3, 0))
    path = place / "books" / "stage-in.manifest"
    path.write_bytes(path.read_bytes() + b'["b", 1, 2')
    torn = Manifest(open_manifest(str(place / "books"), "in"))
    torn.add(Copied("c", 1, 2, "d", 3, 0))
    again = Manifest(open_manifest(str(place / "books"), "in"))

    assert {"a"} == torn.copied.keys() - {"c"}
    assert {"a", "c"} == set(again.copied)


def test_what_would_be_copied_into_itself_is_refused(place):
    book = Manifest(open_manifest(str(place / "books"), "in"))
    with pytest.raises(StageError, match="is within"):
        copy_in(str(place), [Target(str(place / "to"), 1)], book, lambda word: None)
    with pytest.raises(StageError, match="is within"):
        copy_out(
            [str(place)], Output(str(place / "new" / "one"), "1"), book, book, lambda word: None
        )


def test_holes_stay_holes_and_special_files_are_counted(place):
    with (place / "from" / "hole").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"x")
    os.mkfifo(place / "from" / "pipe")
    told = []
    book = Manifest(open_manifest(str(place / "books"), "in"))
    copy_in(str(place / "from"), [Target(str(place / "to"), 1 << 30)], book, told.append)
    copy = place / "to" / "hole"

    assert (place / "from" / "hole").read_bytes() == copy.read_bytes()
    assert copy.stat().st_blocks * 512 < 4 << 20
    assert not (place / "to" / "pipe").exists()
    assert 1 == told[-1]["others"]
    assert told[-1]["bytes"] == told[-1]["total_bytes"]


names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
).filter(lambda name: name not in (".", ".."))
trees = st.recursive(
    st.binary(max_size=200),
    lambda inner: st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
).filter(lambda tree: isinstance(tree, dict))


def build(top, tree):
    for name, what in tree.items():
        if isinstance(what, dict):
            os.mkdir(f"{top}/{name}")
            build(f"{top}/{name}", what)
        else:
            Path(f"{top}/{name}").write_bytes(what)


@given(trees, st.lists(st.integers(1, 1 << 20), min_size=1, max_size=3))
def test_any_tree_comes_out_as_it_went_in_over_any_number_of_disks(tree, rooms):
    place = Path(tempfile.mkdtemp())
    try:
        for name in ("from", "to", "books", *map(str, range(len(rooms)))):
            (place / name).mkdir()
        build(place / "from", tree)
        targets = [Target(str(place / f"{n}"), room) for n, room in enumerate(rooms)]
        came = Manifest(open_manifest(str(place / "books"), "in"))
        try:
            copy_in(str(place / "from"), targets, came, lambda word: None)
        except StageError:  # no disk has room
            return
        nothing = Manifest(open_manifest(str(place / "books"), "none"))
        sources = [target.path for target in targets]
        copy_out(sources, Output(str(place / "to"), "1"), nothing, nothing, lambda word: None)

        assert contents(place / "from") == contents(place / "to")
    finally:
        shutil.rmtree(place)
