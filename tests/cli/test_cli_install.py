"""``iod install`` on a machine below a temporary directory, with programs that note their calls."""

from __future__ import annotations

import os
import re
import shutil
import stat

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

    def later(self, text="# later\n", *, unit):
        """A release comes whose unit has another text."""
        folder = self.root.parent / "shipped"
        if not folder.exists():
            shutil.copytree(shipped("systemd"), folder)
        with (folder / f"system/{unit}").open("a") as file:
            file.write(text)
        self.layout = self.layout_of(PROGRAM, folder)

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
    assert {shutil.which(name) for name in PROGRAMS} == {f"{tmp_path}/bin/{n}" for n in PROGRAMS}
    return Computer(tmp_path)


@pytest.fixture
def installed(computer):
    computer.install()
    return computer


def refusal(act, **options):
    with pytest.raises(RequestError) as refused:
        act(**options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# -- installing ------------------------------------------------------------------------------------

FRESH = [
    "systemd-sysusers /etc/sysusers.d/iodaemon.conf",
    "systemd-tmpfiles --create /etc/tmpfiles.d/iodaemon.conf",
    "systemctl daemon-reload",
    f"systemctl enable --now {' '.join(UNITS)}",
]
RESTART = [
    "systemctl reload iodaemon-supervisor.service",
    "systemctl restart iodaemon.service",
]


def test_a_fresh_machine_gets_files_user_link_configuration_and_running_units(computer):
    assert FRESH == computer.install()
    assert PROGRAM == os.readlink(computer.at(LINK))
    assert f"\nExecStart={PROGRAM} daemon --system\n" in computer.at(DAEMON_UNIT).read_text()
    text = "".join(path.read_text() for path in computer.at("/etc/systemd/system").iterdir())
    assert "/opt/iodaemon" not in text
    assert computer.at("/etc/iodaemon/config.toml").read_text().startswith("#")
    assert 0o644 == stat.S_IMODE(computer.at(DAEMON_UNIT).stat().st_mode)
    before = computer.files()
    assert ([], before) == (computer.plan(), computer.files())  # a second one has nothing to do


def test_a_dry_run_says_each_step_and_touches_nothing(computer):
    before = computer.files()

    said = [line_of(step) for step in computer.plan()]
    calls = computer.calls()

    assert (before, []) == (computer.files(), calls)
    computer.install()
    assert len(said) == len(computer.told)
    assert f"link {LINK} to {PROGRAM}" in said
    assert f"linked {LINK} to {PROGRAM}" in computer.told


def test_another_version_of_the_program_is_restarted_and_its_socket_is_not(installed):
    installed.version = "2 bbbb"

    assert RESTART == installed.install()
    assert [] == installed.plan()


def test_a_unit_of_another_text_is_replaced_and_read_before_the_restart(installed):
    installed.later(unit="iodaemon.service")

    assert ["systemctl daemon-reload", *RESTART] == installed.install()
    assert installed.at(DAEMON_UNIT).read_text().endswith("# later\n")
    installed.later(unit="iodaemon.socket")
    assert "systemctl restart iodaemon.socket iodaemon.service" == installed.install()[-1]


def test_a_unit_that_is_shipped_no_longer_goes(computer):
    computer.later("[Timer]\n", unit="iodaemon-old.timer")
    computer.install()
    assert computer.at("/etc/systemd/system/iodaemon-old.timer").exists()

    computer.layout = computer.layout_of(PROGRAM)
    computer.install()

    assert not computer.at("/etc/systemd/system/iodaemon-old.timer").exists()


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


def test_a_unit_of_somebody_else_is_not_overwritten_and_an_edited_one_is_kept_beside(computer):
    computer.at(DAEMON_UNIT).write_text("[Service]\nExecStart=/bin/true\n")
    before = computer.files()

    assert "iodaemon.service is there and not of this install" in refusal(computer.install)
    assert before == computer.files()

    computer.at(DAEMON_UNIT).unlink()
    computer.install()
    computer.at(DAEMON_UNIT).write_text("[Service]\nNice=5\n")
    computer.install()

    assert "[Service]\nNice=5\n" == computer.at(f"{DAEMON_UNIT}.saved").read_text()
    assert "Nice=5" not in computer.at(DAEMON_UNIT).read_text()
    assert [] == computer.plan()


def test_an_install_that_was_cut_short_is_completed_or_taken_away(computer):
    computer.do(computer.plan()[:4])

    rest = computer.files()
    computer.install()
    assert computer.at(LINK).is_symlink()
    assert [] == computer.plan()
    computer.remove(purge=True)
    assert RECORD.lstrip("/") in rest
    assert RECORD.lstrip("/") not in computer.files()


def test_a_command_that_fails_says_so_and_the_next_install_goes_on(computer):
    (computer.state / "fail-systemd-tmpfiles").touch()
    told = refusal(computer.install)
    (computer.state / "fail-systemd-tmpfiles").unlink()

    assert re.fullmatch(".*'systemd-tmpfiles --create .*' failed: .* broken.*", told)
    assert FRESH == computer.install()


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
    kept = {"etc/iodaemon", "etc/iodaemon/config.toml", RECORD.lstrip("/")}
    kept |= {"var/lib/iodaemon", "var/lib/iodaemon/journal.db"}
    assert kept == {*computer.files()} - {*before}


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
    assert "nothing was installed by 'iod install'" in refusal(computer.remove, purge=True)
    before = computer.files()
    computer.install()
    computer.remove()

    assert "removed already" in refusal(computer.remove)
    computer.install()
    assert computer.at(DAEMON_UNIT).exists()
    computer.remove()
    computer.remove(purge=True)
    assert before == computer.files()


def test_what_is_not_of_install_stays_when_it_is_purged(computer):
    """A user that was there, an administrator's file, a state directory elsewhere."""
    (computer.state / "user").touch()
    computer.layout = with_places(computer.layout, ["/srv/data", None])
    computer.install()
    policy, data = computer.at("/etc/iodaemon/policies/own.toml"), computer.at("/srv/data")
    policy.parent.mkdir()
    policy.write_text("")
    data.mkdir(parents=True)

    assert "userdel iodaemon" not in computer.remove(purge=True)
    assert policy.exists()
    assert data.exists()
    assert "left /srv/data: it is not install's own place" == computer.told[-1]


def keep(computer, job, *disks):
    """What a job has on disks of tiers."""
    for disk in disks:
        computer.at(f"{disk}/.iodaemon/{job}-1-ab").mkdir(parents=True)
    computer.layout = with_places(computer.layout, (), ["/fast0", "/fast1", "/none"])


def test_what_is_kept_on_tiers_is_in_the_way_of_purging_alone(installed):
    keep(installed, 3, "/fast0", "/fast1")
    keep(installed, 12, "/fast0")
    before = installed.files()

    assert (
        "jobs 3 and 12 have data on storage tiers, and --purge forgets where: "
        "/fast0/.iodaemon/3-1-ab, /fast1/.iodaemon/3-1-ab, /fast0/.iodaemon/12-1-ab; copy what is "
        "needed, then 'iod scratch remove 3,12', or leave it there with --force"
    ) == refusal(installed.remove, purge=True)
    assert before == installed.files()
    installed.remove()
    told = refusal(installed.remove, purge=True)
    assert "install again, then 'iod scratch remove 3,12'" in told
    assert installed.at("/fast0/.iodaemon/3-1-ab").is_dir()


def test_what_is_kept_on_tiers_is_left_and_told_where_purging_is_forced(installed):
    keep(installed, 3, "/fast0")
    keep(installed, 4, "/fast0")
    steps = installed.plan_removal(purge=True, force=True)
    installed.at("/fast0/.iodaemon/4-1-ab").rmdir()  # it is gone by then

    installed.do(steps)

    assert installed.at("/fast0/.iodaemon/3-1-ab").is_dir()
    assert ["left what job 3 has there: /fast0/.iodaemon/3-1-ab"] == [
        line for line in installed.told if "has there" in line
    ]


@pytest.mark.parametrize(
    ("jobs", "purge", "said"),
    [
        (Jobs((4,), ()), False, "job 4 runs or stands suspended: let them end"),
        (Jobs((4, 7), (9,)), False, "jobs 4 and 7 run or stand suspended: let them end"),
        (Jobs((), (9,)), True, "job 9 waits in the queue, and --purge forgets them: 'iod cancel'"),
    ],
)
def test_jobs_are_in_the_way_of_removing_and_force_ends_them(installed, jobs, purge, said):
    installed.jobs = jobs
    before = installed.files()

    assert refusal(installed.remove, purge=purge).startswith(said)
    assert before == installed.files()
    installed.remove(purge=purge, force=True)
    assert tuple(sorted({*jobs.standing, *(jobs.waiting if purge else ())})) == installed.ended


def test_jobs_are_seen_by_their_cgroups_when_no_daemon_answers(installed):
    installed.host = installed.host._replace(ask_jobs=lambda: None)
    cgroup = installed.at("/sys/fs/cgroup/iodaemon.slice/iodaemon-jobs.scope/jobs")
    for name, populated in (("7.1", 1), ("8.2", 0)):
        (cgroup / name).mkdir(parents=True)
        (cgroup / name / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")

    assert "job 7 runs" in refusal(installed.remove)


def test_a_record_of_a_later_version_or_a_damaged_one_is_refused(installed):
    path = installed.at(RECORD)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    later = refusal(installed.plan)
    path.write_text("{")

    assert "written by a later iodaemon" in later
    assert "installed.json does not say what was installed" in refusal(installed.plan)


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
    assert FRESH[-1] == calls[-1]
    assert not older.at(f"/etc/systemd/system/{KEEPER}").exists()
    assert older.at("/etc/systemd/system/iodaemon-supervisor.service").exists()
    assert any(line.startswith("kept /var/lib/iodaemon-keeper: ") for line in older.told)
    assert [] == older.plan()


def test_jobs_of_a_keeper_are_in_the_way(older):
    older.jobs = Jobs((4, 7), (9,))
    before = older.files()

    assert (
        "jobs 4 and 7 run or stand suspended under the installed release, whose jobs this one does "
        "not know: 'iod drain --wait' first, then install again"
    ) == refusal(older.install)
    assert before == older.files()


def test_a_release_with_a_keeper_is_removed_as_well(older):
    data = older.at("/var/lib/iodaemon-keeper/jobs")
    data.mkdir(parents=True)

    calls = older.remove(purge=True)

    assert f"systemctl disable --now {KEEPER}" == calls[0]
    assert "systemctl disable --now iodaemon.socket iodaemon.service" in calls
    assert not data.exists()


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
    reloaded = "systemctl --user daemon-reload"
    assert [reloaded, "systemctl --user enable --now iodaemon.service"] == calls
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
    assert not flaw_of(venv)  # one that all can read and only its owner write will do
    (venv / path).chmod(mode)
    told = flaw_of(venv)
    (venv / path).chmod(0o755)

    assert said in told


def test_a_folder_that_a_group_may_write_to_is_refused_unless_it_is_roots(venv):
    path = venv / "opt"
    path.chmod(0o775)
    if path.stat().st_gid == 0:
        assert not flaw_of(venv)
    if os.getuid() == 0:
        os.chown(path, 0, 50)
        assert flaw_of(venv).startswith("others than root may write to /opt ")


def test_a_place_that_the_services_sandbox_hides_is_refused_also_behind_a_link(venv):
    (venv / "usr/bin/python3").unlink()
    for home in ("root", "home", "tmp", "var/tmp"):
        (venv / home / "ann").mkdir(parents=True)
        (venv / "usr/bin/python3").symlink_to(f"/{home}/ann/python3")
        told = [flaw_of(venv)]
        (venv / "usr/bin/python3").unlink()
        (venv / "opt/venv").rename(venv / home / "ann/venv")
        told += [flaw_of(venv, f"/{home}/ann/venv")]
        (venv / home / "ann/venv").rename(venv / "opt/venv")

        assert all(f"installed below /{home}, which the service does not" in each for each in told)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_venv_of_another_user_is_refused(venv):
    os.chown(venv / "opt/venv/lib/iodaemon", 12345, 0)

    assert "belongs to uid 12345, who could act as root" in flaw_of(venv)


# -- the verb --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "uid", "is_booted", "code", "said"),
    [
        (["--purge"], 0, True, 2, "--purge goes with --remove"),
        (["--force"], 0, True, 2, "--force goes with --remove"),
        ([], 1000, True, 4, "only root can set up a service for all users: call it by sudo"),
        (["--user"], 0, True, None, "--user is for a user's own daemon; as root leave it out"),
        ([], 0, False, None, "systemd does not run this machine"),
        (["--user"], 1000, True, None, "loginctl enable-linger"),
    ],
)
def test_what_cannot_be_installed_by_whom_or_where_is_told(
    iod, tmp_path, monkeypatch, words, uid, is_booted, code, said
):
    (tmp_path / "systemd").mkdir()
    monkeypatch.setattr(verb, "_BOOTED", str(tmp_path / ("systemd" if is_booted else "none")))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    found, told = iod.fails("install", *words)

    assert said in told
    assert code in (None, found)


def test_a_wrong_configuration_stops_an_install_and_no_removal(tmp_path):
    wrong = tmp_path / "config.toml"
    wrong.write_text("policie = 'x'\n")
    session = verb.Session()
    session.config = str(wrong)

    with pytest.raises(Exception, match="policie"):
        verb._settings(session, is_system=True, must_be_right=True)
    settings = verb._settings(session, is_system=True, must_be_right=False)
    assert "/var/lib/iodaemon" == settings.state_dir
