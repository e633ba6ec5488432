"""``iod install``: from a clean server to a first job, an upgrade below jobs, and away."""

import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from recipe import ROOT, fetch_wheels
from server import IOD, SCOPE, UNITS, build_wheel

PIP = "/opt/iodaemon/bin/python -m pip --disable-pip-version-check"
SYSTEM_UNITS = ("iodaemon.socket", *UNITS)
CHECKOUT = (
    *("iodaemon", "policies", "sim", "systemd"),
    *("pyproject.toml", "hatch_build.py", "README.md"),
)
"""What the wheel is built of."""
GATE = "while [ ! -e /tmp/gate-install ]; do sleep 0.2; done; exit 7"
NOISE = (
    *(r"/(proc|sys|dev|tmp|root|home|boot)/", r"/var/(log|cache|tmp)/", r"/var/lib/(systemd|apt)/"),
    *(r"/run/(systemd|log|udev|user|utmp|lock)\b", r"/etc/[a-z]+-\t", r"/etc/\.pwd\.lock"),
    r".*/__pycache__",
)
"""What changes by itself, what the tests put there, and the old versions that useradd keeps."""


def readme_commands():
    """The lines of README.md's block below "On a server": those of root, those of any user."""
    text = (ROOT / "README.md").read_text()
    section = re.search(r"^## On a server\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    block = re.search(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[1]
    lines = [line for line in block.splitlines() if line.strip()]
    border = next(number for number, line in enumerate(lines) if line.startswith("# any user"))
    return lines[:border], lines[border + 1 :]


def snapshot(machine):
    """Every path of the server with its kind, mode, owner and, in /etc, its text's digest."""
    found = machine.sh(
        "find / -xdev -printf '%p\\t%y %m %u:%g %l\\n';"
        "find /run -mindepth 1 -printf '%p\\t%y %m %u:%g %l\\n';"
        "find /etc /usr/local -xdev -type f -exec sha256sum {} + | sed 's/  /\\t/'"
        " | awk -F'\\t' '{print $2 \"\\t\" $1}'",
        limit_s=300,
    )
    noise = re.compile("|".join(NOISE))
    return {line for line in found.splitlines() if not noise.match(line)}


def leftovers(machine):
    """What is named after the service, or belongs to it, beside its program and these tests'."""
    return machine.sh(
        "systemctl list-units --all --plain --no-legend 'iodaemon*' || true;"
        "systemctl list-unit-files --no-legend 'iodaemon*' || true;"
        "find /etc /run /var /usr/local /sys/fs/cgroup -name '*iodaemon*' -not -path '/var/log/*'"
        " -not -path '/run/log/*' -not -path '/run/systemd/units/invocation*';"
        "pgrep -af 'iod |iodaemon' | grep -v 'bash -ec' || true; getent passwd iodaemon || true;"
        "getent group iodaemon || true; readlink /usr/local/bin/iod || true"
    )


def remove(service, *options, check=True):
    return service.machine.run(IOD, "install", "--remove", *options, check=check, limit_s=300)


@pytest.fixture(scope="module")
def bare(installed):
    """The server with the program and without the service; in the end it is as it was."""
    installed.await_ready()
    installed.cancel_all()
    remove(installed, "--purge", "--force")
    yield installed
    installed.machine.sh("rm -f /tmp/gate-*")  # jobs are counted from 1 again
    installed.install()
    installed.await_ready()


@pytest.fixture
def set_up(bare):
    """The service, set up by the program that is there; taken away afterwards."""
    bare.machine.sh(f"{IOD} install", limit_s=300)
    bare.await_ready()
    bare.machine.sh("rm -f /tmp/gate-install")
    yield bare
    remove(bare, "--purge", "--force", check=False)
    bare.machine.sh("rm -f /tmp/gate-install")


def put_checkout(machine, folder):
    """This project into a directory of the server, and what requirements.txt names below it."""
    with tempfile.TemporaryDirectory() as place:
        packed = Path(place) / "checkout.tar"
        with tarfile.open(packed, "w") as archive:
            for name in (*CHECKOUT, "requirements.txt"):
                archive.add(
                    ROOT / name, name, filter=lambda i: None if "__pycache__" in i.name else i
                )
        machine.put(f"{folder}/checkout.tar", packed.read_bytes())
        machine.sh(f"cd {folder}; tar xf checkout.tar --no-same-owner; rm checkout.tar")
        needed = Path(place) / "needed"
        fetch_wheels(needed, "--require-hashes", "--requirement", ROOT / "requirements.txt")
        for path in sorted(needed.iterdir()):
            machine.put(f"{folder}/needed/{path.name}", path.read_bytes())


@pytest.fixture
def empty_place(bare):
    """No venv either: a checkout, and the wheels it needs in place of a network."""
    machine = bare.machine
    machine.sh("mv /opt/iodaemon /opt/kept")
    put_checkout(machine, "/root/readme")
    yield machine
    machine.sh("rm -rf /opt/iodaemon /root/readme; mv /opt/kept /opt/iodaemon")


def test_the_readme_sets_a_clean_server_up_and_one_line_takes_all_away(bare, empty_place):
    machine = empty_place
    roots, users = readme_commands()
    before = snapshot(machine)

    assert len(roots) + len(users) <= 10
    no_network = "cd /root/readme; export PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/readme/needed"
    for line in roots:
        print(line, machine.sh(f"{no_network}; {line}", limit_s=600), sep="\n")
    printed = machine.sh("\n".join(users), user="ann", limit_s=200)

    assert "hello from vmnode" in printed
    bare.await_ready()
    assert "enabled" == machine.sh("systemctl is-enabled iodaemon.service")
    refused = machine.run("iod", "install", user="ann", check=False)
    assert (4, 1) == (refused.code, refused.err.count("\n"))
    print(remove(bare, "--purge").out)
    machine.sh("rm -r /opt/iodaemon")
    assert set() == snapshot(machine) ^ before
    assert "" == leftovers(machine)


def test_a_dry_run_says_what_it_would_do_and_touches_nothing(bare):
    before = snapshot(bare.machine)

    said = bare.machine.sh(f"{IOD} install --dry-run").splitlines()

    assert all(line.startswith("would ") for line in said)
    assert f"would run systemctl enable --now {' '.join(SYSTEM_UNITS[:1])}" in "\n".join(said)
    assert before == snapshot(bare.machine)
    assert "" == leftovers(bare.machine)


def upgraded_tree(place):
    """This project as another version, with another unit."""
    tree = Path(place) / "tree"
    for name in CHECKOUT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tree).mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    version = tree / "iodaemon/__init__.py"
    version.write_text(re.sub(r'__version__ = ".*"', '__version__ = "99.0"', version.read_text()))
    unit = tree / "systemd/system/iodaemon-supervisor.service"
    unit.write_text(unit.read_text().replace("[Service]\n", "[Service]\nEnvironment=UPGRADED=1\n"))
    return tree


@pytest.fixture
def later_wheel(set_up):
    """Another version's wheel on the server; this one is back in the end."""
    with tempfile.TemporaryDirectory() as place:
        later = build_wheel(place, upgraded_tree(place))
        set_up.machine.put(f"/root/{later.name}", later.read_bytes())
    yield f"/root/{later.name}"
    set_up.put_program()


def test_an_upgrade_restarts_the_daemon_only_and_jobs_run_on(set_up, later_wheel):
    service, machine = set_up, set_up.machine
    assert "nothing to do" in machine.sh(f"{IOD} install")
    jobs = [service.submit(GATE), service.submit(GATE, user="bob")]
    for job in jobs:
        service.await_state(job, "RUNNING")
    service.ask("POST", f"/v1/jobs/{jobs[1]}/suspend", {}, user="bob")
    service.await_state(jobs[1], "SUSPENDED_USER")
    pids = [service.pids(job)[0] for job in jobs]
    daemon, anchor = (service.main_pid(unit) for unit in UNITS)

    machine.sh(f"{PIP} install -q -U --no-index --no-deps {later_wheel}", limit_s=300)
    print(machine.sh(f"{IOD} install", limit_s=300))
    service.await_ready()

    assert "iod 99.0" == machine.sh("iod --version", user="ann")
    unit = machine.sh("systemctl show -P Environment iodaemon-supervisor.service")
    assert "UPGRADED=1" in unit.split()
    after, still = (service.main_pid(unit) for unit in UNITS)
    assert (True, anchor) == (after != daemon, still)
    service.await_state(jobs[1], "SUSPENDED_USER")
    frozen = f"grep -q '^frozen 1' {service.cgroup(jobs[1])}/cgroup.events"
    machine.until(frozen, what="the suspended job stands still again")
    assert pids == [service.pids(job)[0] for job in jobs]
    machine.sh("touch /tmp/gate-install")
    service.ask("POST", f"/v1/jobs/{jobs[1]}/resume", {}, user="bob")
    ends = [service.await_state(job, "FAILED", "LOST")["exit_code"] for job in jobs]
    assert [7, 7] == ends


def test_removing_waits_for_jobs_and_a_second_install_knows_the_first_ones_jobs(set_up):
    service, machine = set_up, set_up.machine
    _, done = service.run("exit 4")
    running = service.submit(GATE)
    service.await_state(running, "RUNNING")

    refused = remove(service, check=False)
    assert (1, 1) == (refused.code, refused.err.count("\n"))
    assert f"job {running} runs or stands suspended" in refused.err
    machine.sh("touch /tmp/gate-install")
    service.await_state(running, "FAILED")
    print(remove(service).out)

    left = leftovers(machine).splitlines()
    kept = {"/etc/iodaemon", "/var/lib/iodaemon", "/var/lib/iodaemon-supervisor"}
    assert kept == {line for line in left if line.startswith("/")}
    assert [] == [line for line in left if line.endswith(("service", "socket", "scope", "slice"))]
    machine.sh(f"{IOD} install", limit_s=300)
    service.await_ready()
    assert ("FAILED", 4) == tuple(service.show(done["id"])[key] for key in ("state", "exit_code"))
    printed, shown = service.run("echo again")
    assert ("again\n", 0) == (printed, shown["exit_code"])


def test_force_ends_jobs_that_run_and_stand_and_nothing_of_them_is_left(bare):
    machine = bare.machine
    before = snapshot(machine)
    machine.sh(f"{IOD} install", limit_s=300)
    bare.await_ready()
    stubborn = "trap '' TERM; while :; do sleep 1000; done"
    jobs = [bare.submit(stubborn), bare.submit("sleep 3000", user="bob"), bare.submit("sleep 3000")]
    for job in jobs:
        bare.await_state(job, "RUNNING")
    bare.ask("POST", f"/v1/jobs/{jobs[1]}/suspend", {}, user="bob")
    bare.await_state(jobs[1], "SUSPENDED_USER")
    pids = [pid for job in jobs for pid in bare.pids(job)]

    print(remove(bare, "--force", "--purge").out)

    assert "" == machine.sh(f"ls -d {' '.join(f'/proc/{pid}' for pid in pids)} 2>&- || true")
    assert "" == machine.sh(f"ls -d {SCOPE} 2>&- || true")
    assert set() == snapshot(machine) ^ before
    assert "" == leftovers(machine)


# -- a user's own daemon ---------------------------------------------------------------------------


@pytest.fixture
def ann(bare):
    """The server with a systemd of ann's, who has no login; afterwards it is gone."""
    machine = bare.machine
    machine.sh("rm -f /tmp/gate-install; loginctl enable-linger ann")
    machine.until("test -S /run/user/1001/systemd/private", what="ann's systemd")
    yield machine
    machine.sh("loginctl disable-linger ann")
    machine.until("! test -d /run/user/1001", what="the end of ann's systemd")
    machine.sh("rm -rf /home/ann/.config /home/ann/.local")


def test_a_users_own_daemon_comes_runs_jobs_over_a_restart_and_goes(ann):
    machine = ann
    before = machine.sh("find /home/ann -printf '%p %m\\n' | sort")

    def iod(*words, **options):
        return machine.run(IOD, *words, user="ann", limit_s=300, **options)

    would = iod("install", "--user", "--dry-run").out
    assert before == machine.sh("find /home/ann -printf '%p %m\\n' | sort")
    done = iod("install", "--user").out
    print(done)
    assert len(would.splitlines()) + 2 == len(done.splitlines())
    assert "loginctl" not in done
    assert "nothing to do" in iod("install", "--user").out
    iod("submit", "--wait", "--", "true")
    iod("submit", "--", "sh", "-c", GATE)
    machine.until(f"{IOD} queue | grep -q ' R '", what="the job", user="ann", limit_s=120)
    show = "systemctl --user show -P MainPID iodaemon.service"
    main = machine.sh(show, user="ann")
    machine.sh("systemctl --user restart iodaemon.service", user="ann", limit_s=200)
    assert main != machine.sh(show, user="ann")
    refused = iod("install", "--user", "--remove", check=False)
    assert (1, 1) == (refused.code, refused.err.count("\n"))
    assert "job 2 runs or stands suspended" in refused.err
    machine.sh("touch /tmp/gate-install")
    assert 7 == iod("wait", "2", check=False).code
    print(iod("install", "--user", "--remove").out)
    assert "" == machine.sh("pgrep -u ann -af iodaemon || true")
    assert "" == machine.sh("find /sys/fs/cgroup/user.slice /run/user/1001 -name '*iodaemon*'")

    iod("install", "--user")
    iod("submit", "--", "sleep", "3000")
    machine.until(f"{IOD} queue | grep -q ' R '", what="the job", user="ann", limit_s=120)
    iod("install", "--user", "--remove", "--purge", "--force")
    assert "" == machine.sh("pgrep -u ann -af 'iodaemon|sleep 3000' || true")
    left = machine.sh("find /home/ann -printf '%p %m\\n' | sort")
    extra = {*left.splitlines()} - {*before.splitlines()}
    assert {"/home/ann/.config 755", "/home/ann/.local 755", "/home/ann/.local/state 755"} >= extra
