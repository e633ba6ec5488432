"""Where iod doctor writes, in directories of others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaving import name_of

from iodaemon.doctor.scratch import PREFIX, scratch_directory

ROOT = Path(__file__).parents[2]
KILLED = """
import os
from iodaemon.doctor.scratch import scratch_directory
with scratch_directory(".") as path:
    os.mkdir(f"{path}/data")
    open(f"{path}/data/file", "w").close()
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def near(tmp_path):
    near = tmp_path / "near"
    near.mkdir()
    return near


@pytest.fixture
def left(near):
    """What one that was killed left there."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", KILLED], cwd=near, env=environment, check=False)
    [left] = near.iterdir()
    assert (left / "data/file").exists()
    return left


def examine(near):
    with scratch_directory(str(near)):
        pass


def test_what_a_killed_one_left_is_removed(near, left):
    examine(near)

    assert [] == list(near.iterdir())


def test_another_directory_of_the_same_user_that_was_given_such_a_name_is_left(near):
    precious = near / name_of(PREFIX)
    (precious / "below").mkdir(parents=True)
    (precious / "file").touch()

    examine(near)

    assert [precious] == list(near.iterdir())
    assert ["below", "file"] == sorted(os.listdir(precious))


@pytest.mark.parametrize("how", ["file", "link elsewhere", "of another"])
def test_a_mark_that_is_not_the_one_it_was_made_with_is_none(near, how):
    precious = near / name_of(PREFIX)
    (precious / "below").mkdir(parents=True)
    mark = precious / "mark"
    if how == "file":
        mark.write_text(precious.name)
    else:
        mark.symlink_to("elsewhere" if how == "link elsewhere" else precious.name)
    if how == "of another":
        if os.geteuid() != 0:
            pytest.skip("only root can make it another's")
        os.lchown(mark, 65534, 65534)

    examine(near)

    assert (precious / "below").exists()


def test_one_that_was_given_the_name_of_a_dead_one_while_it_is_used_is_left(near):
    with scratch_directory(str(near)) as path:
        [made] = near.iterdir()
        made.rename(near / name_of(PREFIX))
        os.close(os.open(f"{path}/commits", os.O_WRONLY | os.O_CREAT, 0o600))
        examine(near)

        assert os.path.exists(f"{path}/commits")
    assert [] == list(near.iterdir())


def test_an_empty_one_of_a_dead_one_that_had_no_time_for_its_mark_is_removed(near):
    (near / name_of(PREFIX)).mkdir()

    examine(near)

    assert [] == list(near.iterdir())


def test_what_is_put_in_the_place_of_its_directory_is_not_written_to(tmp_path, near):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    with scratch_directory(str(near)) as path:
        [made] = near.iterdir()
        made.rename(near / "taken")
        made.symlink_to(elsewhere)
        os.close(os.open(f"{path}/commits", os.O_WRONLY | os.O_CREAT, 0o600))
        written = sorted(os.listdir(near / "taken"))

    assert ["commits", "mark"] == written
    assert [] == list(elsewhere.iterdir())
    assert [made] == list(near.iterdir())  # what is its own is gone, wherever it was put


def test_what_looks_like_a_cgroup_that_was_left_is_not_written_to(tmp_path, near, left):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (left / "cgroup.procs").touch()
    for name in ("cgroup.freeze", "cgroup.kill"):
        (left / name).symlink_to(victim)

    examine(near)

    assert "as it was" == victim.read_text()
    assert [] == list(near.iterdir())


def test_a_link_in_the_place_of_what_was_left_is_not_followed(tmp_path, near):
    precious = tmp_path / "precious"
    (precious / "file").mkdir(parents=True)
    link = near / name_of(PREFIX)
    link.symlink_to(precious)

    examine(near)

    assert [link] == list(near.iterdir())
    assert (precious / "file").exists()


def test_it_leaves_nothing(tmp_path):
    with scratch_directory(str(tmp_path / "not" / "there")) as path:
        assert os.path.isdir(path)

    assert [] == list(tmp_path.iterdir())


def test_what_went_wrong_is_told_although_the_directory_cannot_be_removed(near):
    def fail():
        with scratch_directory(str(near)) as path:
            file = os.open(f"{path}/file", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(file, int(os.path.basename(path)))  # a directory that cannot be listed
            os.close(file)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
