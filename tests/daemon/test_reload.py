"""The configuration is read again while jobs run: all of it or nothing, told and kept."""

import contextlib
import json
import os
import signal
import subprocess

import pytest
from harness import until
from process import command, daemon, environment, iod, read_until, ready, wait_until

from iodaemon.api.care import reload_config
from iodaemon.errors import RequestError

pytestmark = pytest.mark.node

BUSY = ["repeat=500", "read=20MB"]


class Place:
    """A daemon's directories and its configuration file."""

    def __init__(self, path):
        self.state, self.runtime = path / "state", path / "run"
        self.file = path / "config.toml"
        self.file.write_text("")
        self.socket = self.runtime / "iod.sock"

    def daemon(self, *options):
        return daemon(self.state, self.runtime, "--config", str(self.file), *options)

    def write(self, text):
        self.file.write_text(text)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("reload"))
    with place.daemon() as (client, process):
        place.client, place.process = client, process
        yield place


@pytest.fixture
def running(lasting):
    """A daemon that runs for all tests of this module, with nothing configured at first."""
    for job in lasting.client.jobs()["jobs"]:
        with contextlib.suppress(RequestError):  # it has just ended
            lasting.client.cancel(job["id"], grace_s=0)
    lasting.write("")
    reload_config(lasting.client)
    lasting.seen = len(config_events(lasting.client))
    return lasting


def told(answer, key="changed"):
    return {each["path"]: (each["before"], each["after"]) for each in answer[key]}


def settings(client):
    return {f"{r['table']}.{r['key']}".strip("."): r for r in client.config()["settings"]}


def config_events(client):
    return [e for e in client.events(since_s=0.0, follow=False) if e["kind"] == "config"]


def test_what_changed_is_told_in_force_and_kept(running):
    client = running.client
    running.write(
        'cancel_grace = "20 s"\nretain = "30 d"\njournal_samples = true\nlog_level = "debug"\n'
        'mode = "shadow"\n'
        'policy = "dynamic"\n[users]\nmax_queued = 1\n[regulation]\nio_bound = "300 MB/s"\n'
    )
    answer = reload_config(client)
    shown, policy = settings(client), client.policy()
    client.submit([{"command": ["compute=60s"], "hold": True}], {})
    with pytest.raises(RequestError, match="max_queued"):
        client.submit([{"command": ["compute=60s"]}], {})
    [event] = config_events(client)[running.seen :]

    changed = told(answer)
    assert ('"10 s"', '"20 s"') == changed["cancel_grace"]
    assert ('"default"', '"dynamic"') == changed["policy"]
    assert ('"adaptive"', '"dynamic"') == changed["regulation.rule"]
    assert ("100000", "1") == changed["users.max_queued"]
    assert [] == answer["needs_restart"]
    assert ('"20 s"', str(running.file)) == tuple(
        shown["cancel_grace"][key] for key in ("value", "origin")
    )
    assert ('"on"', '"shadow"') == changed["mode"]
    assert wait_until(lambda: client.mode()["mode"] == "shadow")
    assert '"300 MB/s"' == shown["regulation.io_bound"]["value"]
    assert ("dynamic", 3e8) == (policy["name"], policy["regulation"]["io_bound_bytes_per_s"])
    assert 'cancel_grace: "10 s" -> "20 s"' in event["changes"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('cancel_grace = "20 s"\n[users]\nmax_running = 0\n', "max_running is 0"),
        ("\xff\xfe", "is no UTF-8 text"),
    ],
)
def test_a_file_with_an_error_changes_nothing_and_is_one_line(running, text, problem):
    client = running.client
    before = (client.config(), client.policy())
    running.file.write_bytes(text.encode("latin-1"))

    ended = iod(running.socket, "config", "reload")

    assert before == (client.config(), client.policy())
    assert running.seen == len(config_events(client))
    assert (1, "") == (ended.returncode, ended.stdout)
    [line] = ended.stderr.splitlines()
    assert problem in line
    assert line.endswith("; nothing was changed")


def test_what_needs_a_restart_is_named_and_the_rest_is_done(running):
    running.write(
        'cancel_grace = "20 s"\nmetrics_listen = "127.0.0.1:9751"\norphan_grace = "90 s"\n'
        "[topology]\noversubscribe = 2\n"
    )
    ended = iod(running.socket, "config", "reload")
    again = iod(running.socket, "config", "reload", "--json")
    shown = settings(running.client)

    assert (0, 'cancel_grace: "10 s" -> "20 s"\n') == (ended.returncode, ended.stdout)
    assert 3 == len(ended.stderr.splitlines())
    assert (
        'iod: metrics_listen: "none" -> "127.0.0.1:9751" needs a restart: restart the daemon '
        "('iod stop', then start it as before); jobs run on"
    ) in ended.stderr.splitlines()
    answer = json.loads(again.stdout)
    assert {"file", "changed", "needs_restart", "notes"} == set(answer)
    assert ([], 3) == (answer["changed"], len(answer["needs_restart"]))
    assert '"none"' == shown["metrics_listen"]["value"]


def test_a_policy_file_that_was_edited_counts(running, tmp_path):
    mine = tmp_path / "mine.toml"
    text = '[admission]\nrule = "fcfs"\n[regulation]\nrule = "adaptive"\nio_bound = "%s"\n'
    mine.write_text(text % "100 MB/s")
    running.write(f'policy = "{mine}"\n')
    reload_config(running.client)
    mine.write_text(text % "50 MB/s")

    changed = told(reload_config(running.client))
    assert {"regulation.io_bound": ('"100 MB/s"', '"50 MB/s"')} == changed


def test_a_signal_does_the_same_and_what_is_wrong_stands_in_the_log_alone(running):
    client, process = running.client, running.process
    running.write('cancel_grace = "20 s"\n')
    process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: len(config_events(client)) > running.seen)
    running.write("cancel_grace = 1 s")
    process.send_signal(signal.SIGHUP)
    log = read_until(process.stdout.fileno(), b"event=not_reloaded")

    assert '"20 s"' == settings(client)["cancel_grace"]["value"]
    assert "event=reconfigured by=SIGHUP change=\"cancel_grace: '10 s' -> '20 s'\"" in log
    assert "Traceback" not in log


def test_a_shorter_timeslice_counts_before_the_old_one_is_over(running):
    """Jobs that the rule holds at its end run again under another one."""
    client = running.client
    running.write('policy = "dynamic"\n[regulation]\ntimeslice = "1 h"\n')
    reload_config(client)
    ids = client.submit([{"command": BUSY}] * 3, {})

    def states():
        return [client.job(job_id)["state"] for job_id in ids]

    running.write('policy = "dynamic"\n[regulation]\ntimeslice = "0.1 s"\nio_bound = "1 MB/s"\n')
    reload_config(client)
    assert wait_until(lambda: "SUSPENDED_IO" in states())
    running.write('policy = "none"\n')
    reload_config(client)
    assert wait_until(lambda: states() == ["RUNNING"] * 3)
    moved = [e for e in client.events(since_s=0.0, follow=False) if e["kind"] == "moved"]

    reasons = [e["reason"]["text"] for e in moved if e["after"] == "RUNNING" and e["reason"]]
    assert "the policy was changed" in reasons


def test_real_frozen_jobs_run_again_under_another_policy(make_server):
    server = make_server(
        policy="dynamic",
        regulation={"timeslice": "0.1 s", "io_bound": "1 kB/s"},
    )
    server.start()
    jobs = [
        server.gated(name, step="head -c 300000 /dev/zero > big; sleep 0.01") for name in ("a", "b")
    ]
    until(lambda: "SUSPENDED_IO" in server.states(*jobs), "a suspension")
    text = server.config.read_text()
    server.config.write_text(text.replace('"dynamic"', '"none"'))
    answer = reload_config(server.client)
    assert "policy" in told(answer)
    until(lambda: server.states(*jobs) == ["RUNNING"] * 2, "both run")
    assert [] == server.frozen()
    server.goes_on("a")
    server.goes_on("b")
    server.open_gate("a", "b")
    assert [("COMPLETED", 0)] * 2 == server.outcome(*jobs)


def test_a_daemon_that_a_terminal_leaves_ends_in_order(tmp_path):
    """A pseudo-terminal is its standard error; SIGHUP is how it is told."""
    master, slave = os.openpty()
    words = command(tmp_path / "state", tmp_path / "run")
    process = subprocess.Popen(words, env=environment(tmp_path), stdout=slave, stderr=slave)
    os.close(slave)
    try:
        ready(process, tmp_path / "run" / "iod.sock")
        process.send_signal(signal.SIGHUP)
        assert 0 == process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(master)
