"""Jobs that the regulation holds, through what happens to the units and to the machine."""

import time

import pytest
from server import CONFIG

DAEMON, SUPERVISOR = "iodaemon.service", "iodaemon-supervisor.service"
BOTH = f"{SUPERVISOR} {DAEMON}"
FILE = "/etc/iodaemon/config.toml"
CAPPED = f"""{CONFIG}
[regulation]
io_bound = "1 MB/s"  # two of the writers are too much for it, and so is one: one always goes on
"""
WRITES = """
while [ ! -e /tmp/gate-$IOD_JOB_ID ]; do
    dd if=/dev/zero of=/var/tmp/writer-$IOD_JOB_ID bs=128k count=32 oflag=direct conv=notrunc
    sleep 0.1
done 2>/dev/null
rm /var/tmp/writer-$IOD_JOB_ID
exit 7
"""


@pytest.fixture
def _capped(service):
    """A cap that one writer exceeds is in force; afterwards all is as it was."""
    sh = service.machine.sh

    def put(text):  # a power cut does not undo it
        service.machine.put(FILE, text.encode())
        sh(f"sync {FILE}; systemctl start {DAEMON}; systemctl reload {DAEMON}", limit_s=200)

    put(CAPPED)
    yield
    put(CONFIG)
    service.cancel_all()
    assert "" == service.leftovers()
    sh("rm -f /var/tmp/writer-* /tmp/gate-*")


@pytest.fixture
def writers(service, _capped):
    """One of ann's, one of bob's; one of them is held, it may be either."""
    jobs = service.submit(WRITES), service.submit(WRITES, user="bob")
    settle(service, *jobs)
    return jobs


def settle(service, *jobs, limit_s=120.0):
    """Who is held and who goes on, once the daemon and the kernel say both of the same one."""
    until_s = time.monotonic() + limit_s
    while True:
        states = {service.show(job).get("state"): job for job in jobs}
        frozen = service.frozen()
        if {"SUSPENDED_IO", "RUNNING"} == set(states):
            held = states["SUSPENDED_IO"]
            if [f"{held}.1"] == frozen:
                return held, states["RUNNING"]
        assert "LOST" not in states
        assert time.monotonic() < until_s, f"not one of two is held: {states}, frozen: {frozen}"
        time.sleep(0.2)


def first_pids(service, jobs):
    return [service.pids(job)[0] for job in jobs]


def finish(service, jobs):
    """Let both end by themselves; their exit codes. Who is held comes back when the other ends."""
    service.machine.sh(f"touch {' '.join(f'/tmp/gate-{job}' for job in jobs)}")
    return [service.await_state(job, "FAILED", "LOST")["exit_code"] for job in jobs]


def test_systemd_that_reads_its_units_again_wakes_nobody(service, writers):
    before, pair = first_pids(service, writers), settle(service, *writers)

    service.machine.sh("systemctl daemon-reload", limit_s=200)

    assert [f"{pair[0]}.1"] == service.frozen()
    assert pair == settle(service, *writers)
    assert before == first_pids(service, writers)
    assert [7, 7] == finish(service, writers)


@pytest.mark.parametrize(
    ("how", "units"),
    [
        (f"pkill -KILL -x iod-supervisor; systemctl kill -s KILL {DAEMON}", (DAEMON,)),
        (f"systemctl reload {SUPERVISOR}; systemctl restart {DAEMON}", (DAEMON,)),
    ],
    ids=["both are killed", "both are upgraded"],
)
def test_one_of_two_is_held_again_and_none_is_lost(service, writers, how, units):
    before = first_pids(service, writers)
    mains = {unit: service.main_pid(unit) for unit in units}

    service.machine.sh(how, limit_s=200)
    for unit, main in mains.items():
        replaced = f"p=$(systemctl show -P MainPID {unit}); [ $p != 0 ] && [ $p != {main} ]"
        service.machine.until(replaced, what=f"another {unit}")
    service.await_ready()

    settle(service, *writers)
    assert before == first_pids(service, writers)
    assert [7, 7] == finish(service, writers)


def test_nothing_is_held_once_all_is_stopped_and_one_is_again_after_the_start(service, writers):
    before = first_pids(service, writers)

    service.machine.sh(f"systemctl stop iodaemon.socket {DAEMON} {SUPERVISOR}", limit_s=200)

    assert [] == service.frozen()
    assert before == first_pids(service, writers)
    service.machine.sh(f"systemctl start {DAEMON}", limit_s=200)
    service.await_ready()
    settle(service, *writers)
    assert before == first_pids(service, writers)
    assert [None, None] == finish(service, writers)  # their parent has ended


@pytest.mark.parametrize("how", ["reboot", "cut_power"])
@pytest.mark.usefixtures("_capped")
def test_a_held_job_runs_again_after(service, how):
    running = service.submit(WRITES, no_suspend=True)
    held = service.submit(WRITES, user="bob", requeue=True)
    assert (held, running) == settle(service, held, running)
    service.machine.sh("sync")

    getattr(service.machine, how)()
    service.await_ready()

    assert 2 == service.await_state(held, "RUNNING")["attempt"]
    assert "LOST" == service.show(running)["state"]
    assert [] == service.frozen()
