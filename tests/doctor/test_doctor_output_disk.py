"""Whether doctor says that what jobs print can fill the journal's filesystem."""

import pytest
from mounting import small_disk

from iodaemon.doctor.finding import Verdict
from iodaemon.doctor.journal_disk import judge_output_disk, probe_output_disk


@pytest.mark.parametrize("made", [True, False])
def test_two_directories_of_one_filesystem_share_its_room(tmp_path, made):
    state, output = tmp_path / "state", tmp_path / "output"
    if made:
        state.mkdir()
        output.mkdir()

    found = judge_output_disk(probe_output_disk(state, output))

    assert Verdict.LACKING is found.verdict
    assert f"{output} is " in found.measured
    assert "the journal's filesystem" in found.measured
    assert "output_max" in found.cost
    assert "supervisor_dir" in found.remedy
    assert {"shared": True} == found.values


def test_a_filesystem_of_its_own_is_ok(tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    with small_disk(output, kib=1024):
        found = judge_output_disk(probe_output_disk(tmp_path / "state", output / "jobs"))

    assert Verdict.OK is found.verdict
    assert {"shared": False} == found.values
