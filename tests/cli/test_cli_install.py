"""``iod install`` on a machine below a temporary directory, with programs that note their calls."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from iodaemon.cli import install as verb
from iodaemon.config import config_toml, default_settings
from iodaemon.errors import RequestError
from iodaemon.install.layout import UNITS, system_layout, user_layout, with_places
from iodaemon.install.perform import Host, Jobs, look, perform
from iodaemon.install.plan import line_of, plan_install, plan_removal
from iodaemon.install.program import find_flaw
from iodaemon.registry import shipped

PROGRAM = "/opt/venv/bin/iod"
RECORD = "/etc/iodaemon/installed.json"
DAEMON_UNIT = "/etc/systemd/system/iodaemon.service"
LINK = "/usr/local/bin/iod"
STAND_IN = """\
#!/bin/sh
# Notes how it was called; keeps which units are active, enabled, and whether the user is there.
me=$(basename "$0"); state=$(dirname "$0")/state
case "$me $*" in *" show "*) ;; *) echo "$me $*" >> "$state/calls" ;; esac
[ ! -e "$state/fail-$me" ] || { echo "$me: it is broken" >&2; exit 1; }
case $me in
systemd-sysusers) : > "$state/user"; exit ;;
userdel) rm "$state/user"; exit ;;
systemctl) ;;
*) exit ;;
esac
[ "$1" != --user ] || shift
do=$1; shift
for unit; do
    case "$do $unit" in
    *" -"*) continue ;;
    show*)
        active=inactive; [ ! -e "$state/active-$unit" ] || active=active
        enabled=; [ ! -e "$state/enabled-$unit" ] || enabled=enabled
        printf 'Id=%s\\nActiveState=%s\\nUnitFileState=%s\\n\\n' "$unit" $active $enabled ;;
    enable*) : > "$state/active-$unit"; : > "$state/enabled-$unit" ;;
    disable*) rm -f "$state/active-$unit" "$state/enabled-$unit" ;;
    esac
done
"""
PROGRAMS = ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "userdel", "groupdel")


class Computer:
    """A machine as ``iod install`` sees it."""

    def __init__(self, place):
        self.root, self.state = place / "root", place / "bin/state"
        self.jobs = Jobs((), ())
        self.ended = ()
        self.told = []
        self.version = "1 aaaa"
        self.host = Host(self.root, lambda: self.jobs, self.find_user)
        self.layout = self.layout_of(PROGRAM)
        for folder in ("etc/systemd/system", "etc/sysusers.d", "usr/local/bin", "var/lib", "run"):
            (self.root / folder).mkdir(parents=True)

    def layout_of(self, program, folder=None):
        text = config_toml(default_settings({}, 0))
        return system_layout(program, folder or shipped("systemd"), text)

    def find_user(self, name):
        return 997 if (self.state / "user").exists() else None

    def at(self, path):
        return self.root / path.lstrip("/")

    def plan(self):
        return plan_install(self.layout, look(self.host, self.layout, self.version))

    def plan_removal(self, *, purge=False, force=False):
        found = look(self.host, self.layout, self.version)
        return plan_removal(self.layout, found, purge=purge, force=force)

    def do(self, steps):
        """The calls that it came to."""
        self.told.clear()
        (self.state / "calls").unlink(missing_ok=True)

        def end_jobs(ids):
            self.ended = ids

        perform(steps, self.host, end_jobs=end_jobs, tell=self.told.append)
        return self.calls()

    def install(self):
        return self.do(self.plan())

    def remove(self, **options):
        return self.do(self.plan_removal(**options))

    def calls(self):
        path = self.state / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def files(self):
        """Everything that is there: the text of files, the target of links."""
        return {
            str(path.relative_to(self.root)): os.readlink(path)
            if path.is_symlink()
            else path.read_text()
            if path.is_file()
            else None
            for path in sorted(self.root.rglob("*"))
        }


@pytest.fixture
def computer(tmp_path, monkeypatch):
    (tmp_path / "bin/state").mkdir(parents=True)
    for name in PROGRAMS:
        path = tmp_path / "bin" / name
        path.write_text(STAND_IN)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Computer(tmp_path)


# -- installing ------------------------------------------------------------------------------------


def test_a_fresh_machine_gets_files_user_link_configuration_and_running_units(computer):
    calls = computer.install()

    assert [
        "systemd-sysusers /etc/sysusers.d/iodaemon.conf",
        "systemd-tmpfiles --create /etc/tmpfiles.d/iodaemon.conf",
        "systemctl daemon-reload",
        f"systemctl enable --now {' '.join(UNITS)}",
    ] == calls
    assert PROGRAM == os.readlink(computer.at(LINK))
    assert f"\nExecStart={PROGRAM} daemon --system\n" in computer.at(DAEMON_UNIT).read_text()
    text = "".join(path.read_text() for path in computer.at("/etc/systemd/system").iterdir())
    assert "/opt/iodaemon" not in text
    assert computer.at("/etc/iodaemon/config.toml").read_text().startswith("#")
    assert 0o644 == stat.S_IMODE(computer.at(DAEMON_UNIT).stat().st_mode)


def test_a_second_install_has_nothing_to_do(computer):
    computer.install()
    before = computer.files()

    assert [] == computer.plan()
    assert before == computer.files()


def test_a_dry_run_says_each_step_and_touches_nothing(computer):
    before = computer.files()

    said = [line_of(step) for step in computer.plan()]
    calls = computer.calls()

    assert (before, []) == (computer.files(), calls)
    computer.install()
    assert len(said) == len(computer.told)
    assert f"link {LINK} to {PROGRAM}" in said
    assert f"linked {LINK} to {PROGRAM}" in computer.told


def test_another_version_of_the_program_is_restarted_and_its_socket_is_not(computer):
    computer.install()

    computer.version = "2 bbbb"

    assert [
        "systemctl reload iodaemon-supervisor.service",
        "systemctl restart iodaemon.service",
    ] == computer.install()
    assert [] == computer.plan()


def test_a_unit_of_another_text_is_replaced_and_read_before_the_restart(computer, tmp_path):
    computer.install()
    folder = tmp_path / "shipped"
    shutil.copytree(shipped("systemd"), folder)
    with (folder / "system/iodaemon.service").open("a") as file:
        file.write("# later\n")

    computer.layout = computer.layout_of(PROGRAM, folder)

    assert [
        "systemctl daemon-reload",
        "systemctl reload iodaemon-supervisor.service",
        "systemctl restart iodaemon.service",
    ] == computer.install()
    assert computer.at(DAEMON_UNIT).read_text().endswith("# later\n")


def test_a_changed_socket_is_restarted_with_the_rest(computer, tmp_path):
    computer.install()
    folder = tmp_path / "shipped"
    shutil.copytree(shipped("systemd"), folder)
    with (folder / "system/iodaemon.socket").open("a") as file:
        file.write("# later\n")

    computer.layout = computer.layout_of(PROGRAM, folder)

    assert "systemctl restart iodaemon.socket iodaemon.service" == computer.install()[-1]


def test_a_unit_that_is_shipped_no_longer_goes(computer, tmp_path):
    folder = tmp_path / "shipped"
    shutil.copytree(shipped("systemd"), folder)
    (folder / "system/iodaemon-old.timer").write_text("[Timer]\n")
    computer.layout = computer.layout_of(PROGRAM, folder)
    computer.install()

    computer.layout = computer.layout_of(PROGRAM)
    computer.install()

    assert not computer.at("/etc/systemd/system/iodaemon-old.timer").exists()


def test_a_program_that_moved_takes_units_and_link_along(computer):
    computer.install()

    computer.layout = computer.layout_of("/srv/iod2/bin/iod")
    computer.install()

    assert "/srv/iod2/bin/iod" == os.readlink(computer.at(LINK))
    assert "ExecStart=/srv/iod2/bin/iod daemon" in computer.at(DAEMON_UNIT).read_text()


def test_a_configuration_that_is_there_is_left_as_it_is(computer):
    config = computer.at("/etc/iodaemon/config.toml")
    config.parent.mkdir()
    config.write_text("mode = 'shadow'\n")

    computer.install()

    assert "mode = 'shadow'\n" == config.read_text()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_another_iod_on_the_path_is_left_and_told(computer, kind):
    link = computer.at(LINK)
    if kind == "file":
        link.write_text("#!/bin/sh\n")
    else:
        link.symlink_to("/usr/bin/other")

    computer.install()

    assert not link.is_symlink() or "/usr/bin/other" == os.readlink(link)
    assert computer.told[-1].startswith(f"left {LINK} as it is, ")
    assert PROGRAM in computer.told[-1]
    computer.remove(purge=True)
    assert os.path.lexists(link)


def test_a_unit_of_somebody_else_is_not_overwritten(computer):
    computer.at(DAEMON_UNIT).write_text("[Service]\nExecStart=/bin/true\n")
    before = computer.files()

    with pytest.raises(RequestError, match=r"iodaemon\.service is there and not of this install"):
        computer.install()
    assert before == computer.files()


def test_a_unit_that_was_edited_is_kept_beside_the_new_one(computer):
    computer.install()
    computer.at(DAEMON_UNIT).write_text("[Service]\nNice=5\n")

    computer.install()

    assert "[Service]\nNice=5\n" == computer.at(f"{DAEMON_UNIT}.saved").read_text()
    assert "Nice=5" not in computer.at(DAEMON_UNIT).read_text()
    assert [] == computer.plan()


def test_an_install_that_was_cut_short_is_completed_or_taken_away(computer):
    steps = computer.plan()
    computer.do(steps[:4])

    rest = computer.files()
    computer.install()
    assert computer.at(LINK).is_symlink()
    assert [] == computer.plan()
    computer.remove(purge=True)
    assert RECORD.lstrip("/") in rest
    assert RECORD.lstrip("/") not in computer.files()


def test_a_service_that_was_stopped_is_started_again(computer):
    computer.install()
    (computer.state / "active-iodaemon.service").unlink()

    assert [f"systemctl enable --now {' '.join(UNITS)}"] == computer.install()


def test_a_command_that_fails_says_so_and_the_next_install_goes_on(computer):
    (computer.state / "fail-systemd-tmpfiles").touch()
    with pytest.raises(RequestError, match=r"'systemd-tmpfiles --create .*' failed: .* broken"):
        computer.install()

    (computer.state / "fail-systemd-tmpfiles").unlink()

    assert [
        "systemd-sysusers /etc/sysusers.d/iodaemon.conf",
        "systemd-tmpfiles --create /etc/tmpfiles.d/iodaemon.conf",
        "systemctl daemon-reload",
        f"systemctl enable --now {' '.join(UNITS)}",
    ] == computer.install()


# -- removing --------------------------------------------------------------------------------------


def test_removing_takes_what_install_made_and_keeps_data_and_configuration(computer):
    before = computer.files()
    computer.install()
    data = computer.at("/var/lib/iodaemon/journal.db")
    data.parent.mkdir()
    data.write_text("kept")

    calls = computer.remove()

    assert f"systemctl disable --now {' '.join(UNITS)}" == calls[0]
    assert "userdel iodaemon" not in calls
    new = {path for path in computer.files() if path not in before}
    assert {
        "etc/iodaemon",
        "etc/iodaemon/config.toml",
        "etc/iodaemon/installed.json",
        "var/lib/iodaemon",
        "var/lib/iodaemon/journal.db",
    } == new


def test_purging_leaves_the_machine_as_it_was(computer):
    before = computer.files()
    computer.install()
    for path in ("/var/lib/iodaemon/journal.db", "/run/iodaemon/iod.sock"):
        computer.at(path).parent.mkdir(parents=True)
        computer.at(path).touch()

    calls = computer.remove(purge=True)

    assert before == computer.files()
    assert "userdel iodaemon" in calls


def test_what_was_removed_can_be_purged_later_or_installed_again(computer):
    before = computer.files()
    computer.install()
    computer.remove()

    with pytest.raises(RequestError, match="removed already"):
        computer.remove()
    computer.install()
    assert computer.at(DAEMON_UNIT).exists()
    computer.remove()
    computer.remove(purge=True)
    assert before == computer.files()


def test_a_user_that_was_there_before_stays(computer):
    (computer.state / "user").touch()
    computer.install()

    assert "userdel iodaemon" not in computer.remove(purge=True)


def test_files_of_the_administrator_beside_the_configuration_stay(computer):
    computer.install()
    policy = computer.at("/etc/iodaemon/policies/own.toml")
    policy.parent.mkdir()
    policy.write_text("")

    computer.remove(purge=True)

    assert policy.exists()


def test_a_state_directory_elsewhere_is_never_removed(computer):
    computer.layout = with_places(computer.layout, ["/srv/data", None])
    computer.install()
    computer.at("/srv/data").mkdir(parents=True)

    computer.remove(purge=True)

    assert computer.at("/srv/data").exists()
    assert "left /srv/data: it is not install's own place" == computer.told[-1]


def keep(computer, job, *disks):
    """What a job has on disks of tiers."""
    for disk in disks:
        computer.at(f"{disk}/.iodaemon/{job}-1-ab").mkdir(parents=True)
    computer.layout = with_places(computer.layout, (), ["/fast0", "/fast1", "/none"])


def test_what_is_kept_on_tiers_is_in_the_way_of_purging_alone(computer):
    computer.install()
    keep(computer, 3, "/fast0", "/fast1")
    keep(computer, 12, "/fast0")
    before = computer.files()

    with pytest.raises(RequestError) as refused:
        computer.remove(purge=True)

    assert (
        "jobs 3 and 12 have data on storage tiers, and --purge forgets where: "
        "/fast0/.iodaemon/3-1-ab, /fast1/.iodaemon/3-1-ab, /fast0/.iodaemon/12-1-ab; copy what is "
        "needed, then 'iod scratch remove 3,12', or leave it there with --force"
    ) == str(refused.value)
    assert before == computer.files()
    computer.remove()
    with pytest.raises(RequestError, match=r"install again, then 'iod scratch remove 3,12'"):
        computer.remove(purge=True)
    assert computer.at("/fast0/.iodaemon/3-1-ab").is_dir()


def test_what_is_kept_on_tiers_is_left_and_told_where_purging_is_forced(computer):
    computer.install()
    keep(computer, 3, "/fast0")
    keep(computer, 4, "/fast0")
    steps = computer.plan_removal(purge=True, force=True)
    computer.at("/fast0/.iodaemon/4-1-ab").rmdir()  # it is gone by then

    computer.do(steps)

    assert computer.at("/fast0/.iodaemon/3-1-ab").is_dir()
    assert ["left what job 3 has there: /fast0/.iodaemon/3-1-ab"] == [
        line for line in computer.told if "has there" in line
    ]


def test_places_on_disks_are_purged_when_nothing_is_in_them(computer):
    computer.install()
    keep(computer, 3, "/fast0", "/fast1")
    computer.at("/fast0/.iodaemon/3-1-ab").rmdir()
    computer.at("/fast1/.iodaemon/3-1-ab").rename(computer.at("/fast1/.iodaemon/of an admin"))

    computer.remove(purge=True)

    assert "removed /fast0/.iodaemon" in computer.told
    assert not computer.at("/fast0/.iodaemon").exists()
    assert computer.at("/fast1/.iodaemon/of an admin").is_dir()


# -- a release with a keeper -----------------------------------------------------------------------

KEEPER = "iodaemon-keeper.service"


@pytest.fixture
def older(computer, tmp_path):
    """The machine with a release installed that has a keeper."""
    folder = tmp_path / "shipped"
    shutil.copytree(shipped("systemd"), folder)
    (folder / "system/iodaemon-supervisor.service").rename(folder / f"system/{KEEPER}")
    units = ("iodaemon.socket", KEEPER, "iodaemon.service")
    computer.layout = computer.layout_of(PROGRAM, folder)._replace(units=units)
    computer.install()
    computer.layout = computer.layout_of(PROGRAM)
    return computer


def test_a_keeper_makes_room_for_the_supervisor(older):
    calls = older.install()

    assert f"systemctl disable --now {KEEPER}" == calls[0]
    assert "systemctl stop iodaemon-jobs.scope iodaemon.slice" == calls[1]
    assert f"systemctl enable --now {' '.join(UNITS)}" == calls[-1]
    assert not older.at(f"/etc/systemd/system/{KEEPER}").exists()
    assert older.at("/etc/systemd/system/iodaemon-supervisor.service").exists()
    assert any(line.startswith("kept /var/lib/iodaemon-keeper: ") for line in older.told)
    assert [] == older.plan()


def test_jobs_of_a_keeper_are_in_the_way(older):
    older.jobs = Jobs((4, 7), (9,))
    before = older.files()

    with pytest.raises(RequestError) as refused:
        older.install()

    assert (
        "jobs 4 and 7 run or stand suspended under the installed release, whose jobs this one does "
        "not know: 'iod drain --wait' first, then install again"
    ) == str(refused.value)
    assert before == older.files()


def test_a_release_with_a_keeper_is_removed_as_well(older):
    data = older.at("/var/lib/iodaemon-keeper/jobs")
    data.mkdir(parents=True)

    calls = older.remove(purge=True)

    assert f"systemctl disable --now {KEEPER}" == calls[0]
    assert "systemctl disable --now iodaemon.socket iodaemon.service" in calls
    assert not data.exists()


def test_what_was_never_installed_is_not_removed(computer):
    with pytest.raises(RequestError, match="nothing was installed by 'iod install'"):
        computer.remove(purge=True, force=True)


@pytest.mark.parametrize(
    ("jobs", "purge", "said"),
    [
        (Jobs((4,), ()), False, "job 4 runs or stands suspended: let them end"),
        (Jobs((4, 7), (9,)), False, "jobs 4 and 7 run or stand suspended: let them end"),
        (Jobs((), (9,)), True, "job 9 waits in the queue, and --purge forgets them: 'iod cancel'"),
    ],
)
def test_jobs_are_in_the_way_of_removing_and_force_ends_them(computer, jobs, purge, said):
    computer.install()
    computer.jobs = jobs
    before = computer.files()

    with pytest.raises(RequestError) as refused:
        computer.remove(purge=purge)

    assert str(refused.value).startswith(said)
    assert before == computer.files()
    computer.remove(purge=purge, force=True)
    assert tuple(sorted({*jobs.standing, *(jobs.waiting if purge else ())})) == computer.ended


def test_jobs_that_wait_are_kept_with_the_journal(computer):
    computer.install()
    computer.jobs = Jobs((), (9,))

    computer.remove()

    assert () == computer.ended


def test_jobs_are_seen_by_their_cgroups_when_no_daemon_answers(computer):
    computer.install()
    computer.host = computer.host._replace(ask_jobs=lambda: None)
    cgroup = computer.at("/sys/fs/cgroup/iodaemon.slice/iodaemon-jobs.scope/jobs")
    for name, populated in (("7.1", 1), ("8.2", 0)):
        (cgroup / name).mkdir(parents=True)
        (cgroup / name / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")

    with pytest.raises(RequestError, match="job 7 runs"):
        computer.remove()


def test_a_record_of_a_later_version_is_refused(computer):
    computer.install()
    path = computer.at(RECORD)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))

    with pytest.raises(RequestError, match="written by a later iodaemon"):
        computer.plan()


def test_a_damaged_record_is_told_in_one_line(computer):
    computer.install()
    computer.at(RECORD).write_text("{")

    with pytest.raises(RequestError, match=r"installed\.json does not say what was installed"):
        computer.plan()


# -- a user's own ----------------------------------------------------------------------------------


def test_a_users_own_daemon_is_one_unit_and_leaves_nothing(computer):
    computer.layout = user_layout(
        "/home/ann/iod/bin/iod",
        shipped("systemd"),
        config_file="/home/ann/.config/iodaemon/config.toml",
        runtime_dir="/run/user/1001/iodaemon",
        state_dir="/home/ann/.local/state/iodaemon",
    )
    before = computer.files()

    calls = computer.install()

    unit = computer.at("/home/ann/.config/systemd/user/iodaemon.service")
    assert "\nExecStart=/home/ann/iod/bin/iod daemon\n" in unit.read_text()
    assert [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now iodaemon.service",
    ] == calls
    assert [] == computer.plan()
    computer.remove()
    computer.remove(purge=True)
    assert {*before, "home", "home/ann"} >= {*computer.files()}


# -- the program -----------------------------------------------------------------------------------


@pytest.fixture
def venv(tmp_path):
    """A root directory with a small venv in /opt/venv, whose interpreter is a link."""
    root = tmp_path / "root"
    for folder in ("opt/venv/bin", "opt/venv/lib/iodaemon", "usr/bin"):
        (root / folder).mkdir(parents=True)
    for file, mode in (("usr/bin/python3", 0o755), ("opt/venv/bin/iod", 0o755)):
        (root / file).touch()
        (root / file).chmod(mode)
    (root / "opt/venv/lib/iodaemon/text.py").touch()
    (root / "opt/venv/bin/python").symlink_to("../../../usr/bin/python3")
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return root


def flaw_of(root, *parts):
    parts = parts or ("/opt/venv/bin/python", "/opt/venv")
    return str(find_flaw(parts, root, owner_uid=os.getuid()) or "")


def test_a_venv_that_all_can_read_and_only_its_owner_write_will_do(venv):
    assert not flaw_of(venv)


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        ("opt/venv", 0o700, "/opt/venv is not open to all users"),
        ("opt", 0o750, "/opt is not open to all users"),
        ("opt/venv/bin/iod", 0o700, "/opt/venv/bin/iod is not open to all users"),
        ("usr/bin/python3", 0o750, "/usr/bin/python3 is not open to all users"),
        ("opt/venv/lib/iodaemon/text.py", 0o600, "text.py is not open to all users"),
        ("opt", 0o777, "others than root may write to /opt "),
        ("opt", 0o1777, "others than root may write to /opt "),
        ("opt/venv/lib/iodaemon/text.py", 0o666, "others than root may write to /opt/venv/lib"),
    ],
)
def test_a_program_that_not_all_can_run_or_others_can_change_is_refused(venv, path, mode, said):
    (venv / path).chmod(mode)

    found = flaw_of(venv)

    assert said in found
    assert "\n" not in found
    (venv / path).chmod(0o755)


def test_a_folder_that_a_group_may_write_to_is_refused_unless_it_is_roots(venv):
    path = venv / "opt"
    path.chmod(0o775)
    if path.stat().st_gid == 0:
        assert not flaw_of(venv)
    if os.getuid() == 0:
        os.chown(path, 0, 50)
        assert flaw_of(venv).startswith("others than root may write to /opt ")


@pytest.mark.parametrize("home", ["root", "home", "tmp", "var/tmp"])
def test_a_place_that_the_services_sandbox_hides_is_refused(venv, home):
    (venv / home / "ann").mkdir(parents=True)
    (venv / "opt/venv").rename(venv / home / "ann/venv")

    found = flaw_of(venv, f"/{home}/ann/venv")

    assert f"installed below /{home}, which the service does not" in found


def test_an_interpreter_behind_a_link_into_a_home_is_refused(venv):
    (venv / "root/python").mkdir(parents=True)
    (venv / "usr/bin/python3").unlink()
    (venv / "usr/bin/python3").symlink_to("/root/python/bin/python3")

    assert "installed below /root" in flaw_of(venv)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_venv_of_another_user_is_refused(venv):
    os.chown(venv / "opt/venv/lib/iodaemon", 12345, 0)

    assert "belongs to uid 12345, who could act as root" in flaw_of(venv)


def test_a_program_with_a_blank_in_its_path_is_refused():
    with pytest.raises(RequestError, match="cannot be called from a unit"):
        system_layout("/opt/my venv/bin/iod", shipped("systemd"), "")


# -- the verb --------------------------------------------------------------------------------------


@pytest.fixture
def booted(tmp_path, monkeypatch):
    """A machine that systemd runs."""
    (tmp_path / "systemd").mkdir()
    monkeypatch.setattr(verb, "_BOOTED", str(tmp_path / "systemd"))


@pytest.mark.parametrize("option", ["--purge", "--force"])
def test_what_goes_with_remove_is_refused_without(iod, option):
    code, said = iod.fails("install", option)

    assert 2 == code
    assert said.startswith(f"{option} goes with --remove")


def test_only_root_installs_for_all(iod, booted, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    code, said = iod.fails("install")

    assert 4 == code
    assert said.startswith("only root can set up a service for all users: call it by sudo")


def test_root_gets_no_daemon_of_its_own(iod, booted, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert "--user is for a user's own daemon; as root leave it out" in iod.fails(
        "install", "--user"
    )


def test_without_systemd_it_says_so(iod, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(verb, "_BOOTED", str(tmp_path / "none"))

    assert iod.fails("install")[1].startswith("systemd does not run this machine")


def test_without_a_manager_of_the_user_it_says_how_to_get_one(iod, booted, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    assert "loginctl enable-linger" in iod.fails("install", "--user")[1]


def test_a_wrong_configuration_stops_an_install_and_no_removal(iod, booted, tmp_path, monkeypatch):
    wrong = tmp_path / "config.toml"
    wrong.write_text("policie = 'x'\n")
    session = verb.Session()
    session.config = str(wrong)

    with pytest.raises(Exception, match="policie"):
        verb._settings(session, is_system=True, must_be_right=True)
    settings = verb._settings(session, is_system=True, must_be_right=False)
    assert "/var/lib/iodaemon" == settings.state_dir


def test_the_stand_ins_are_what_is_called(computer):
    assert [str(Path(shutil.which(name)).parent) for name in PROGRAMS] == [
        str(computer.state.parent)
    ] * len(PROGRAMS)
