"""Care of the service: reload by systemd, its lines in the journal, backup and restore by root."""

import json

import pytest
from server import CONFIG, SCRIPT

DAEMON = "iodaemon.service"
FILE = "/etc/iodaemon/config.toml"


@pytest.fixture
def configured(service):
    """Writes the configuration; at the end it is as it was."""

    def write(text):
        service.machine.put(FILE, (text + CONFIG).encode())

    yield write
    write("")
    service.machine.sh(f"systemctl reload {DAEMON}", limit_s=200)


def settings(service):
    rows = service.ask("GET", "/v1/config")["settings"]
    return {f"{row['table']}.{row['key']}".strip("."): row["value"] for row in rows}


def test_systemd_reloads_the_configuration_and_fails_where_it_is_wrong(service, configured):
    pid = service.main_pid(DAEMON)
    configured('retain = "30 d"\nmin_uid = 2000\n')
    service.machine.sh(f"systemctl reload {DAEMON}", limit_s=200)
    assert '"30d"' == settings(service)["retain"]
    configured('retain = "soon"\n')

    failed = service.machine.run("systemctl", "reload", DAEMON, check=False, limit_s=200)

    assert 0 != failed.code
    assert ('"30d"', "1000") == (settings(service)["retain"], settings(service)["min_uid"])
    assert pid == service.main_pid(DAEMON)
    told = service.machine.sh(f"journalctl -q -o cat -u {DAEMON} -n 200")
    assert "'systemctl restart iodaemon-supervisor iodaemon'" in told
    assert "nothing was changed" in told


def test_only_administrators_may_reload_and_drain(service):
    for target, body in (("/v1/config/reload", {}), ("/v1/drain", {"drain": True})):
        assert "not_permitted" == service.ask("POST", target, body)["error"]["code"]
    assert not service.ask("GET", "/v1/drain")["draining"]


def test_lines_in_the_journal_have_their_priority_and_no_time_of_their_own(service):
    rows = service.machine.sh(f"journalctl -q -o json -u {DAEMON} _COMM=iod -n 50").splitlines()
    lines = [json.loads(row) for row in rows]
    ours = [line for line in lines if str(line["MESSAGE"]).startswith("level=")]

    assert ours
    assert {"6"} == {x["PRIORITY"] for x in ours if x["MESSAGE"].startswith("level=INFO")}
    assert not any(str(line["MESSAGE"]).startswith("<") for line in lines)


def test_a_drain_outlives_the_daemon(service):
    service.ask("POST", "/v1/drain", {"drain": True, "reason": "new memory"}, user="root")
    job = service.submit("true")
    service.machine.sh(f"systemctl restart {DAEMON}", limit_s=200)
    service.await_ready()
    shown = service.show(job)
    service.ask("POST", "/v1/drain", {"drain": False}, user="root")

    assert ("PENDING", "Drain") == (shown["state"], shown["reason"]["code"])
    assert "new memory" in shown["reason"]["text"]
    assert 0 == service.await_state(job, "COMPLETED", "FAILED")["exit_code"]


def test_root_backs_up_and_restores_while_jobs_run(service):
    sh = service.machine.sh
    first = service.submit(SCRIPT)
    service.await_state(first, "RUNNING")
    sh("rm -f /root/copy.db; iod backup /root/copy.db", limit_s=200)
    refused = service.iod("backup", "/tmp/mine.db", "--system", check=False)
    second = service.submit(SCRIPT, user="bob")
    service.await_state(second, "RUNNING")
    running = service.machine.run("iod", "restore", "/root/copy.db", check=False)
    sh("systemctl stop iodaemon.socket iodaemon.service", limit_s=200)
    said = service.machine.run("iod", "restore", "/root/copy.db")
    sh("systemctl start iodaemon.socket iodaemon.service", limit_s=200)
    service.await_ready()

    assert 4 == refused.code
    assert "run this as root" in refused.err
    assert "a daemon runs on /var/lib/iodaemon" in running.err
    assert f"taken over because they hold CPUs: {first}" in said.err
    assert "600 iodaemon" == sh("stat -c '%a %U' /var/lib/iodaemon/journal.db")
    assert "600 root" == sh("stat -c '%a %U' /root/copy.db")
    assert "" == sh("find /var/lib/iodaemon ! -user iodaemon")
    sh(f"touch /tmp/gate-{first} /tmp/gate-{second}")
    ends = [service.await_state(job, "FAILED", "LOST")["exit_code"] for job in (first, second)]
    assert [7, 7] == ends
    assert second + 1 == service.submit("true")
