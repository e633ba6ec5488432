"""Where iod doctor writes, in directories of others."""

import os

from iodaemon.doctor.scratch import scratch_directory


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


def test_it_leaves_nothing(tmp_path):
    with scratch_directory(str(tmp_path / "not" / "there")) as path:
        assert os.path.isdir(path)

    assert [] == list(tmp_path.iterdir())
