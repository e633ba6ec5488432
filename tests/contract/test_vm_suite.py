"""How the virtual server's tests are run and told of, tried without a virtual server."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VM = Path(__file__).parents[1] / "vm"
SERVER = """
import types
ACCELERATION, SUITE, SCRIPT = "none", "testing", "true"
boots = []
class Machine:
    def __init__(self, image): boots.append(self)
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def sh(self, script): return "Debian 0"
    def run(self, *argv, check): return types.SimpleNamespace(out="it is busy")
class Service:
    def __init__(self, machine): self.machine = machine
    def install(self): pass
    def await_ready(self): pass
    def cancel_all(self): pass
    def frozen(self): return []
    def leftovers(self): return ""
def find_or_build(): return "image", False
"""
TESTS = """
from machine import boots
def test_it_works_at_once(service): pass
def test_it_works_on_the_second_machine(service): assert len(boots) > 1
def test_it_goes_on_with_that_one(service): assert len(boots) == 2
def test_it_never_works(service): assert False, "this is why"
def test_it_begins_anew_after_that(service): assert len(boots) == 4
"""


@pytest.fixture
def suite(tmp_path):
    """Runs them on servers that are none; what was printed."""
    folder = tmp_path / "tests/vm"
    folder.mkdir(parents=True)
    for name in ("conftest.py", "page.py"):
        shutil.copy(VM / name, folder)
    (folder / "machine.py").write_text(SERVER)
    for name in ("recipe", "server"):
        (folder / f"{name}.py").write_text("from machine import *\n")
    (folder / "test_vm_it.py").write_text(TESTS)
    (tmp_path / "docs").mkdir()
    (tmp_path / "bin").mkdir()
    qemu = tmp_path / "bin/qemu-system-x86_64"
    qemu.write_text("#!/bin/sh\necho 'QEMU emulator version 0 (of none)'\n")
    qemu.chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = vm: all of them\n")

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/vm", *words],
            cwd=tmp_path,
            env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_failed_is_tried_once_more_on_another_machine(suite):
    ended = suite()

    assert 1 == ended.returncode
    assert "1 failed, 4 passed" in ended.stdout
    assert "first failure: tests/vm/test_vm_it.py::test_it_works_on" in ended.stdout
    assert "this is why" in ended.stdout
    assert 2 == ended.stdout.count("it is busy")


def test_who_asks_for_one_try_gets_one(suite):
    assert "2 failed" in suite("--once", "-k", "second or never").stdout


def test_the_page_has_each_check_and_keeps_other_suites_sections(suite, tmp_path):
    page = tmp_path / "docs/vm.md"
    page.write_text("# Old\n\n## another\n\nIts table.\n\n## testing\n\nOld.\n")

    suite("--write", "-k", "not never and not anew")
    rows = [line for line in page.read_text().split("\n") if line.startswith("| it |")]

    assert ["ok", "ok, at the second try", "ok"] == [row.split(" | ")[-1][:-2] for row in rows]
    assert "| it | it works on the second machine |" in rows[1]
    assert "3 checks" in page.read_text()
    assert "1 needed a second try" in page.read_text()
    assert "## another\n\nIts table.\n" in page.read_text()
    assert "Old." not in page.read_text()


def test_a_run_that_is_not_to_write_leaves_the_tree_as_it_was(suite, tmp_path):
    suite("-k", "at_once")

    assert [] == list((tmp_path / "docs").iterdir())
