"""By what jobs are alike."""

import shlex

import pytest
from builders import job
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.signature import (
    KINDS,
    LONGEST,
    find_key,
    keys_elsewhere,
    keys_of,
    work_of,
)


def keys(line, **fields):
    return {key.kind: key.text for key in keys_of(job(command=tuple(shlex.split(line)), **fields))}


def test_a_named_job_has_four_keys_from_the_specific_to_the_general():
    made = job(command=("./solve", "a.dat", "40"), cwd="/home/ann", name="lu", uid=7)

    assert [
        (7, "name", "lu"),
        (7, "command", "./solve a.dat 40 in /home/ann"),
        (7, "like", "solve *.dat #"),
        (7, "program", "solve"),
    ] == list(keys_of(made))


def test_a_job_without_a_name_has_the_others():
    assert ["command", "like", "program"] == list(keys("./solve a.dat"))


def test_jobs_of_different_users_are_never_alike():
    ann, bob = (keys_of(job(uid=uid, name="x")) for uid in (1, 2))

    assert set(ann).isdisjoint(bob)


@pytest.mark.parametrize(
    ("line", "program", "pattern"),
    [
        ("./solve mesh.dat 0.3", "solve", "solve *.dat #"),
        ("/opt/v2/bin/solve -n 4 in/a.h5", "solve", "solve -n # *.h5"),
        ("solve --size=100 --out=/a/b.npz", "solve", "solve --size=# --out=*.npz"),
        ("mpirun -n 4 ./solve a.dat", "solve", "solve *.dat"),
        ("nice -n 10 env A=1 taskset -c 0-3 ./solve x", "solve", "solve x"),
        ("timeout 60s ./x", "x", "x"),
        ("./run mesh", "run", "run mesh"),
        ("./time mesh", "time", "time mesh"),
        ("env", "env", "env"),
        ("python3.11 -u train.py 7", "train.py", "train.py #"),
        ("python -m pkg.mod x", "python -m pkg.mod", "python -m pkg.mod x"),
        ("python", "python", "python"),
        ("bash -e ./job12.sh a b", "job#.sh", "job#.sh a b"),
        ("sh -c 'cd /tmp && ./solve a > b.log'", "solve", "solve sh -c cd * && * a > *.log"),
        ("sh -c 'for i in 1 2; do dd of=x; done'", "dd", "dd sh -c for i in # #; do dd of=x; done"),
        ("sh -c ''", "sh", "sh sh -c"),
        ("bash", "bash", "bash"),
        ("cat a.txt b.txt c.txt", "cat", "cat *.txt"),
        ("dd if=/dev/zero of=/tmp/x bs=1M", "dd", "dd * bs=#M"),
    ],
)
def test_what_is_left_of_a_command_without_its_details(line, program, pattern):
    found = keys(line)

    assert (program, pattern) == (found["program"], found["like"])


def test_a_program_in_the_command_line_itself_has_no_name():
    found = keys("python -c 'print(12)'")

    assert "program" not in found
    assert "python -c print(#)" in found["like"]


def test_the_same_words_elsewhere_are_another_command():
    here, there = (keys("./run.sh", cwd=cwd) for cwd in ("/a", "/b"))

    assert here["command"] != there["command"]
    assert here["like"] == there["like"]


def test_a_run_elsewhere_is_known_by_its_program_and_its_pattern():
    found = keys_elsewhere(7, "", ("/scratch/bin/solve", "b.dat"))

    assert [(7, "like", "solve *.dat"), (7, "program", "solve")] == list(found)
    assert set(found) < set(keys_of(job(uid=7, command=("./solve", "a.dat"))))


def test_a_run_elsewhere_without_a_command_is_known_by_its_name_alone():
    assert [(7, "name", "lu")] == list(keys_elsewhere(7, "lu", ()))
    assert () == keys_elsewhere(7, "", ())


def test_a_long_command_is_cut_and_still_told_from_another():
    one, other = (keys(f"x {'word ' * 100}{end}")["command"] for end in "ab")

    assert (LONGEST, LONGEST) == (len(one), len(other))
    assert one != other


@pytest.mark.parametrize("text", ["", "name", "name:", "nothing:x", ":x"])
def test_what_is_no_key_is_not_found(text):
    assert find_key(1, text) is None


WORDS = st.lists(st.text(max_size=12), min_size=1, max_size=8).map(tuple)


@given(WORDS, st.text(max_size=300), st.text(max_size=300))
def test_any_command_has_short_keys_that_can_be_written(command, name, cwd):
    found = keys_of(job(command=command, name=name, cwd=cwd))

    assert len(found) == len(set(found))
    assert [KINDS.index(key.kind) for key in found] == sorted(KINDS.index(k.kind) for k in found)
    assert all(len(key.text) <= LONGEST for key in found)
    assert list(found) == [find_key(key.uid, key.shown) for key in found]


@given(WORDS)
def test_the_work_of_any_command_is_found(command):
    program, pattern = work_of(command)

    assert program or pattern is not None or not any(command)
