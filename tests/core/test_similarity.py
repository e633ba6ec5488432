"""By what jobs are alike."""

import shlex

import pytest
from builders import job
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.similarity import (
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


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("srun -p batch ./solve", "solve"),
        ("srun -n4 --mpi pmix --partition=x ./solve a", "solve"),
        ("mpirun --bind-to core -np 4 --mca btl tcp,self -x OMP ./solve", "solve"),
        ("/usr/bin/time -vo log ./solve", "solve"),
        ("stdbuf -o L ./solve", "solve"),
        ("stdbuf -oL ./solve", "solve"),
        ("timeout -k 5 1h ./solve", "solve"),
        ("numactl --cpunodebind 0 -m 0 ./solve", "solve"),
        ("env -u A B=1 sudo -u ann ./solve", "solve"),
        ("setsid -- ./solve", "solve"),
        ("nice -n 10 7z a x", "7z"),
        ("srun --not-known 4 ./solve", "solve"),
        ("python3 -W ignore train.py", "train.py"),
        ("python3 -um pkg.mod x", "python3 -m pkg.mod"),
        ("perl -I lib -MFoo fit.pl", "fit.pl"),
        ("Rscript --vanilla fit.R", "fit.R"),
        ("R CMD BATCH fit.R", "fit.R"),
        ("julia -t 4 --project=. run.jl", "run.jl"),
        ("java -cp a:b -Xmx4g pkg.Main", "pkg.Main"),
        ("java -Xmx4g -jar app-1.2.jar", "java -jar app-#.jar"),
    ],
)
def test_a_value_of_an_option_is_no_program(line, program):
    assert program == keys(line)["program"]


@pytest.mark.parametrize(
    "line", ["perl -lane 'print 1'", "julia --eval=1", "python -uc 'x'", "python -c 'print(12)'"]
)
def test_a_program_in_the_command_line_itself_has_no_name(line):
    assert "program" not in keys(line)
    assert "python -c print(#)" in keys("python -c 'print(12)'")["like"]


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("source e.sh && python train.py", "train.py"),
        ("module load x; export A=1; B=4 srun -n 4 ./solve in > log 2>&1", "solve"),
        ("set -e\ncd a\n./prepare\n./solve\n", "solve"),
        ("./solve | tee log; echo done", "solve"),
        ("./solve $(cat args) && rm -rf tmp", "solve"),
        ("exec ./solve &> log", "solve"),
        ("if true; then ./solve; fi", "solve"),
        ("bash -c 'cd x; nice python3 fit.py'", "fit.py"),
        ("it's broken; ./solve", "solve"),
        ("cp a b", "cp"),
        ("#!/bin/bash\n#SBATCH -n 2\n# cd a; ./old\n./solve\necho done", "solve"),
        ("#!/bin/bash\n#SBATCH -n 2\nsleep 9", "bash"),
        ("cd a; A=1", "bash"),
    ],
)
def test_of_a_line_for_a_shell_the_last_command_that_works_is_its_program(line, program):
    assert program == keys(shlex.join(["bash", "-lc", line]))["program"]


def test_the_same_words_elsewhere_are_another_command():
    here, there = (keys("./run.sh", cwd=cwd) for cwd in ("/a", "/b"))

    assert here["command"] != there["command"]
    assert here["like"] == there["like"]


def test_a_run_elsewhere_is_known_by_its_name_or_its_program_and_its_pattern():
    found = keys_elsewhere(7, "", ("/scratch/bin/solve", "b.dat"))

    assert [(7, "like", "solve *.dat"), (7, "program", "solve")] == list(found)
    assert set(found) < set(keys_of(job(uid=7, command=("./solve", "a.dat"))))
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


PIECES = st.sampled_from(
    (
        *("srun", "mpirun", "env", "-n", "-p", "--mca", "-c", "-o", "--", "-", "bash", "python3"),
        *("-m", "perl", "java", "-jar", "R", "CMD", "A=1"),
        *("", "./x", "cd a; ./x 'b' | tee", "'", "$(", "\\", ">", "if", "( ("),
    )
)


@given(st.lists(PIECES | st.text(max_size=8), max_size=12).map(tuple))
def test_no_command_is_too_odd(command):
    program, pattern = work_of(command)

    assert isinstance(program, str)
    assert program or pattern is not None or not any(command)
    assert all(len(key.text) <= LONGEST for key in keys_elsewhere(1, "", command))


@given(st.lists(PIECES, max_size=8), st.lists(st.integers(0, 10**6), min_size=2, max_size=2))
def test_other_numbers_make_no_other_program(command, numbers):
    one, other = (work_of(("./x", *command, str(number), "a")) for number in numbers)
    lines = [
        work_of(("sh", "-c", f"cd {number}; srun -n {number} ./x {number}")) for number in numbers
    ]

    assert one == other
    assert lines[0] == lines[1]
    assert "x" == lines[0][0]


def test_of_a_line_without_an_end_the_end_is_looked_at():
    assert "solve" == work_of(("sh", "-c", "( 'x" * 200_000 + "; ./solve"))[0]


@pytest.mark.parametrize(
    "command",
    [
        ("prog", "-a=" * 20_000),
        ("timeout", *(("-n", "1") * 60_000)),
        ("sudo", *(("-n",) * 200_000), "./solve"),
        ("bash", *(("-x",) * 200_000), "./solve"),
        ("python3", *(("-W", "x") * 100_000), "solve.py"),
        ("sh", "-c", "sh -c '" * 100_000),
        ("sh", "-c", "(" * 1_000_000),
        ("env", *(f"A{number}={'x' * 100}" for number in range(50_000))),
        ("1" * 3_000_000, "." * 3_000_000, "/" * 3_000_000, "-" * 3_000_000),
    ],
    ids=lambda command: f"{command[0][:9]} {len(command)}",
)
def test_the_size_of_a_command_is_no_burden(command):
    for name, cwd in (("", None), ("x" * 1_000_000, "/" * 1_000_000)):
        found = keys_of(job(command=command, name=name, cwd=cwd))
        assert all(len(key.text) <= LONGEST for key in found)
