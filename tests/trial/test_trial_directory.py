"""Directories of a trial, while others write around them; and what a killed trial left."""

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from iodaemon.errors import RequestError
from iodaemon.trial.folder import Folder, has_meddlers
from iodaemon.trial.private import own_directory, sweep
from iodaemon.trial.site import site
from iodaemon.trial.workload import load_workload

ROOT = Path(__file__).parents[2]
SOMEBODY = 65534
ANOTHER = 65533
READER = '[[job]]\nkernel = "read"\nsize = "1 MiB"\n'
KILLED = """
import os
from pathlib import Path
from iodaemon.trial.private import own_directory
with own_directory(Path("runtime")) as base:
    with own_directory(Path("disk"), goes_with=base) as data:
        (data / "file").write_bytes(bytes(9))
        os.kill(os.getpid(), 9)
"""
of_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def names(path):
    return sorted(os.listdir(path))


def replace(path, content):
    """What whoever may write around it does: put another directory at its name."""
    path.rename(path.parent / "aside")
    path.mkdir()
    for name, target in content.items():
        (path / name).symlink_to(target)


# -- who may meddle --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "does"), [(0o777, True), (0o1777, False), (0o755, False), (0o700, False)]
)
def test_everybody_meddles_where_everybody_may_rename(tmp_path, mode, does):
    above = tmp_path / "above"
    (above / "own").mkdir(parents=True)
    above.chmod(mode)

    assert does == has_meddlers(above / "own")


@of_root
def test_the_owner_of_a_directory_above_meddles_and_so_does_its_group(tmp_path):
    (tmp_path / "ann/own").mkdir(parents=True)
    os.chown(tmp_path / "ann", SOMEBODY, SOMEBODY)

    assert has_meddlers(tmp_path / "ann/own")
    assert not has_meddlers(tmp_path / "ann/own", SOMEBODY)
    (tmp_path / "ann").chmod(0o775)
    assert has_meddlers(tmp_path / "ann/own", SOMEBODY)


@of_root
def test_a_link_does_not_hide_whose_directory_it_is(tmp_path):
    (tmp_path / "ann").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ann")
    os.chown(tmp_path / "ann", SOMEBODY, SOMEBODY)

    assert has_meddlers(tmp_path / "link")


# -- while others meddle ---------------------------------------------------------------------------


def test_a_held_directory_is_written_to_whatever_is_at_its_name(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    with own_directory(tmp_path, is_held=True) as base:
        [name] = [each for each in names(tmp_path) if each != "victim"]
        replace(tmp_path / name, {"data": victim})
        (base / "data").mkdir()
        (base / "data/file").write_text("ours")

        assert [] == names(victim)
        assert ["data"] == names(tmp_path / "aside")
        child = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())"]
        said = subprocess.run([*child, f"{base}/data/file"], capture_output=True, check=True)
        assert b"ours\n" == said.stdout
    assert [name, "victim"] == names(tmp_path)  # what is ours is gone, wherever it was put
    assert ["data"] == names(tmp_path / name)


def test_a_directory_that_was_put_there_in_the_moment_of_making_is_left_as_it_is(
    tmp_path, monkeypatch
):
    mkdir = os.mkdir

    def swapped(path, *rest):
        mkdir(path, *rest)
        (Path(path) / "precious").touch()

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(PermissionError), own_directory(tmp_path):
        pass

    [left] = names(tmp_path)
    assert ["precious"] == names(tmp_path / left)


def test_files_are_made_anew_and_not_through_what_is_there(tmp_path, monkeypatch):
    from iodaemon.trial import site as module

    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "w.toml").write_text(READER)
    real = module.data_file

    def with_a_link(*words):
        path = real(*words)
        path.symlink_to(victim)
        return path

    monkeypatch.setattr(module, "data_file", with_a_link)
    workload = load_workload(tmp_path / "w.toml", str(tmp_path))
    with pytest.raises((RequestError, OSError)) as caught, site(workload):
        pass

    assert os.strerror(errno.EEXIST) in str(caught.value)
    assert "as it was" == victim.read_text()


@pytest.fixture
def shared():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@of_root
def test_root_uses_a_directory_of_somebody_elses_by_its_descriptor(tmp_path):
    (tmp_path / "w.toml").write_text(READER)
    (tmp_path / "ann").mkdir()
    os.chown(tmp_path / "ann", SOMEBODY, SOMEBODY)
    workload = load_workload(tmp_path / "w.toml", str(tmp_path / "ann"))
    with site(workload) as place:
        [name] = names(tmp_path / "ann")
        replace(tmp_path / "ann" / name, {"data": tmp_path})
        [file] = place.files

        assert 1 << 20 == file.stat().st_size
    assert [name] == names(tmp_path / "ann")
    assert ["ann", "w.toml"] == names(tmp_path)


def test_where_others_give_names_only_what_a_trial_made_is_swept(killed):
    [path] = (killed / "disk").iterdir()
    precious = path.with_name(path.name + "0")
    precious.mkdir()
    (precious / "file").touch()

    sweep(killed / "disk", is_trusted=False)

    assert [precious.name] == names(killed / "disk")
    assert ["file"] == names(precious)


@contextlib.contextmanager
def as_another():
    os.setegid(ANOTHER)
    os.seteuid(ANOTHER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@of_root
def test_who_is_not_root_uses_a_shared_directory_by_its_descriptor(tmp_path, shared):
    (tmp_path / "w.toml").write_text(READER)
    workload = load_workload(tmp_path / "w.toml", str(shared))
    with as_another(), site(workload) as place:
        [file] = place.files

        assert str(file).startswith(f"/proc/{os.getpid()}/fd/")
        assert 1 << 20 == file.stat().st_size
        [name] = names(shared)
        assert ["belongs", "data"] == names(shared / name)
    assert [] == names(shared)


# -- what a killed one left ------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path):
    for name in ("runtime", "disk"):
        (tmp_path / name).mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=environment, check=False)
    assert [1, 1] == [len(names(tmp_path / name)) for name in ("runtime", "disk")]
    return tmp_path


def test_what_a_killed_trial_wrote_on_another_disk_goes_with_its_runtime_directory(killed):
    sweep(killed / "runtime")

    assert [[], []] == [names(killed / name) for name in ("runtime", "disk")]


def test_what_another_machine_or_container_has_below_the_same_directory_is_let_be(killed):
    for place in ("runtime", "disk"):
        [path] = (killed / place).iterdir()
        first, pid, here, last = path.name.split(".")
        path.rename(path.with_name(f"{first}.{pid}.{int(here, 16) ^ 1:04x}.{last}"))
    before = [names(killed / name) for name in ("runtime", "disk")]

    for name in ("runtime", "disk"):
        sweep(killed / name)

    assert before == [names(killed / name) for name in ("runtime", "disk")]


@pytest.mark.parametrize("how", ["link", "mark", "name"])
def test_what_is_not_that_of_the_killed_trial_is_left(killed, how):
    [path] = (killed / "disk").iterdir()
    if how == "link":
        path.rename(killed / "precious")
        path.symlink_to(killed / "precious")
    elif how == "mark":
        (path / "belongs").write_text("iod-trial.1.ab")
    else:
        [runtime] = (killed / "runtime").iterdir()
        path = path.rename(killed / "precious")
        (runtime / "elsewhere").write_bytes(os.fsencode(path))
    sweep(killed / "runtime")

    assert [] == names(killed / "runtime")
    assert (path / "file").exists()


@of_root
def test_what_is_somebody_elses_is_left(killed):
    [path] = (killed / "disk").iterdir()
    os.chown(path, SOMEBODY, SOMEBODY)
    sweep(killed / "runtime")
    sweep(killed / "disk")

    assert (path / "file").exists()


def test_one_that_was_killed_before_the_other_was_made_is_swept_too(killed):
    [path] = (killed / "disk").iterdir()
    (path / "file").unlink()
    (path / "belongs").unlink()
    sweep(killed / "runtime")

    assert [[], []] == [names(killed / name) for name in ("runtime", "disk")]


# -- where results are kept ------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.mkdir()
    (path / "results.json").write_text("as it was")
    return path


def folder(tmp_path):
    return Folder(path=tmp_path / "iod-compare/w", own=2)


def refused(made):
    said = []
    for attempt in (made.check, lambda: made.keep({"results.json": b"new"})):
        with pytest.raises(RequestError) as caught:
            attempt()
        said.append(str(caught.value))
    first, second = said

    assert first == second
    assert "--output" in first
    assert "\n" not in first
    return first


def test_a_folder_is_made_when_there_is_something_to_keep(tmp_path):
    made = folder(tmp_path)
    made.check()

    assert [] == os.listdir(tmp_path)
    made.keep({"a": b"1", "b": b"2"})
    made.keep({"a": b"3"})
    made.check()
    found = {path.name: path.read_bytes() for path in made.path.iterdir()}
    assert {"a": b"3", "b": b"2"} == found


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path, victim):
    made = folder(tmp_path)
    made.path.mkdir(parents=True)
    (made.path / "results.json").symlink_to(victim / "results.json")
    made.keep({"results.json": b"new"})

    assert "as it was" == (victim / "results.json").read_text()
    assert b"new" == (made.path / "results.json").read_bytes()


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path, victim):
    made = folder(tmp_path)
    made.path.parent.mkdir()
    made.path.symlink_to(victim)

    assert f"{made.path} is a link" in refused(made)
    made.path.unlink()
    made.path.parent.rmdir()
    made.path.parent.symlink_to(victim)
    assert f"{made.path.parent} is a link" in refused(made)
    assert ["results.json"] == os.listdir(victim)


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    made = folder(tmp_path)
    made.path.parent.mkdir()
    made.path.touch()

    assert f"{made.path} is no directory" in refused(made)
    with pytest.raises(RequestError, match="is no directory"):
        Folder(path=made.path / "below").check()


@of_root
@pytest.mark.parametrize("part", ["iod-compare", "iod-compare/w"])
def test_a_folder_of_somebody_elses_is_refused(tmp_path, part):
    made = folder(tmp_path)
    made.path.mkdir(parents=True)
    os.chown(tmp_path / part, SOMEBODY, SOMEBODY)

    assert f"{tmp_path / part} belongs to nobody, not to you" in refused(made)
