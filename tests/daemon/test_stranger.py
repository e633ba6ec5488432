"""What the jobs' directories know and the journal does not."""

import pytest

from iodaemon.daemon.stranger import find_strangers, highest_job


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 0),
        (["1.1", "12.3", "9.1"], 12),
        (["lost+found", "x.1", "7.y", "7", ".12.1"], 0),
        (["3.1", f"{2**62}.1", f"{10**30}.1"], 3),
    ],
)
def test_the_highest_id_is_that_of_a_directory_of_a_job(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).mkdir()

    assert expected == highest_job(tmp_path)


def test_where_no_job_ever_ran_there_is_nothing(tmp_path):
    assert 0 == highest_job(tmp_path / "none")
    assert [] == find_strangers(tmp_path / "none", [])


def test_an_attempt_without_a_living_shim_is_no_stranger(tmp_path):
    (tmp_path / "4.1").mkdir()

    assert [] == find_strangers(tmp_path, [])
