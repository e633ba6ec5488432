"""Where iod doctor writes, in directories of others."""

import os

from leaving import name_of

from iodaemon.doctor.scratch import PREFIX, scratch_directory


def test_what_is_put_in_the_place_of_its_directory_is_not_written_to(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    near = tmp_path / "near"
    near.mkdir()

    with scratch_directory(str(near)) as path:
        [made] = near.iterdir()
        made.rename(near / "taken")
        made.symlink_to(elsewhere)
        os.close(os.open(f"{path}/commits", os.O_WRONLY | os.O_CREAT, 0o600))
        written = list((near / "taken").iterdir())

    assert [near / "taken" / "commits"] == written
    assert [] == list(elsewhere.iterdir())
    assert [made] == list(near.iterdir())  # what is its own is gone, wherever it was put


def test_what_looks_like_a_cgroup_that_was_left_is_not_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    near = tmp_path / "near"
    left = near / name_of(PREFIX)
    left.mkdir(parents=True)
    (left / "cgroup.procs").touch()
    for name in ("cgroup.freeze", "cgroup.kill"):
        (left / name).symlink_to(victim)

    with scratch_directory(str(near)):
        pass

    assert "as it was" == victim.read_text()
    assert [] == list(near.iterdir())


def test_a_link_in_the_place_of_what_was_left_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    (precious / "file").mkdir(parents=True)
    near = tmp_path / "near"
    near.mkdir()
    link = near / name_of(PREFIX)
    link.symlink_to(precious)

    with scratch_directory(str(near)):
        pass

    assert [link] == list(near.iterdir())
    assert (precious / "file").exists()


def test_it_leaves_nothing(tmp_path):
    with scratch_directory(str(tmp_path / "not" / "there")) as path:
        assert os.path.isdir(path)

    assert [] == list(tmp_path.iterdir())
