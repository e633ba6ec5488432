"""What a configuration that is read again changes, setting by setting."""

import re
from pathlib import Path

import msgspec
import pytest

from iodaemon.config import (
    in_force,
    load_config,
    load_policy,
    policy_changes,
    setting_changes,
)
from iodaemon.config.change import restarts_of
from iodaemon.config.describe import describe_settings
from iodaemon.registry import shipped

OTHER = {
    "state_dir": '"/other/state"',
    "runtime_dir": '"/other/run"',
    "supervisor_dir": '"/other/supervisor"',
    "min_uid": "2000",
    "backend": '"simulated"',
    "policy": '"none"',
    "cancel_grace": '"20 s"',
    "cancel_grace_max": '"20 min"',
    "orphan_grace": '"90 s"',
    "suspend_by": '"signals"',
    "mode": '"shadow"',
    "journal_samples": "true",
    "retain": '"30 d"',
    "log_level": '"debug"',
    "metrics_listen": '"127.0.0.1:9750"',
    "max_processes": "1000",
    "scratch_over": '"end"',
    "scratch_keep": '"30 d"',
    "default_walltime": '"1 d"',
    "output_max": '"1 GiB"',
    "users.max_running": "3",
    "users.max_queued": "100",
    "users.max_slots": "8",
    "users.fair": "true",
    "topology.sockets": '["0-1", "2-3"]',
    "topology.slot": '"thread"',
    "topology.oversubscribe": "2",
    "topology.fence": '"none"',
}


def written(path, text):
    path.write_text(text)
    return load_config(path, {"HOME": "/home/ann"}, 1000, {})


@pytest.fixture
def plain(tmp_path):
    return written(tmp_path / "plain.toml", "")


def with_other(tmp_path, setting):
    table, _, key = setting.rpartition(".")
    head = f"[{table}]\n" if table else ""
    return written(tmp_path / "other.toml", f"{head}{key} = {OTHER[setting]}\n")


def test_every_setting_is_tried_here(plain):
    settings = {each.path for each in describe_settings(plain) if each.key}

    assert set(OTHER) == settings
    assert set(restarts_of(plain)) <= set(OTHER) | {"tier"}


def test_the_page_tells_of_every_setting_when_it_counts(plain):
    page = (Path(__file__).parents[1] / "docs/care.md").read_text()
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", page.partition("## Reload")[2], re.MULTILINE)
    counts = {}
    for names, told in rows:
        table = ""
        for inner in re.findall(r"`(.+?)`", names):
            head, _, key = inner.rpartition("] ")
            table = head.strip("[") or table
            counts[f"{table}.{key}" if table and not key.startswith("[") else key] = told

    restart = {name for name, told in counts.items() if told.startswith("needs a restart")}
    settings = {each.path for each in describe_settings(plain) if each.key}
    named = {name for name in settings if name in counts or f"[{name.split('.')[0]}]" in counts}
    assert set(restarts_of(plain)) == restart
    assert settings == named


@pytest.mark.parametrize("setting", OTHER)
def test_a_change_is_told_with_what_to_do_and_counts_or_not(plain, tmp_path, setting):
    other = with_other(tmp_path, setting)
    if setting == "backend":  # whose default places are others
        places = {"state_dir": plain.state_dir, "runtime_dir": plain.runtime_dir}
        other = msgspec.structs.replace(other, **places)

    [change] = setting_changes(plain, other)
    now = in_force(plain, other)

    assert setting == change.path
    assert change.before != change.after
    if setting in restarts_of(plain):
        assert "restart" in change.remedy
        assert () == setting_changes(plain, now)
        assert "default" == now.origins[setting]
        assert [change] == list(setting_changes(now, other))  # told again the next time
    else:
        assert "" == change.remedy
        assert () == setting_changes(now, other)
        assert other.file == now.origins[setting]


def test_other_tiers_are_told_as_one_change_and_wait_for_a_restart(plain, tmp_path):
    other = written(tmp_path / "tiers.toml", '[tier.slow]\nbandwidth = "1 GB/s"\n')

    [change] = setting_changes(plain, other)
    now = in_force(plain, other)

    assert ("tier", "{}") == (change.path, change.before)
    assert change.after.startswith('{slow = {rule = "balanced", ')
    assert "restart" in change.remedy
    assert {} == now.tier
    assert [change] == list(setting_changes(now, other))


def test_a_system_service_is_told_its_own_units(plain, tmp_path):
    path = tmp_path / "system.toml"
    path.write_text('orphan_grace = "90 s"\nmetrics_listen = "127.0.0.1:9750"\n')
    before = load_config(plain.file and tmp_path / "plain.toml", {}, 0, {}, is_system=True)
    after = load_config(path, {}, 0, {}, is_system=True)

    remedies = {each.path: each.remedy for each in setting_changes(before, after)}

    assert "systemctl restart iodaemon-supervisor iodaemon" in remedies["orphan_grace"]
    assert "(systemctl restart iodaemon); jobs run on" in remedies["metrics_listen"]


def policy(name, **overrides):
    return load_policy(name, overrides=overrides, search=[shipped("policies")])


def test_a_parameter_of_a_rule_is_told_by_its_key_with_units():
    before = policy("default", regulation={"io_bound": "40 MB/s"})
    after = policy("default", regulation={"io_bound": "80 MB/s"})

    assert ['regulation.io_bound: "40 MB/s" -> "80 MB/s"'] == [
        each.text for each in policy_changes(before, after)
    ]


def test_of_another_rule_the_name_is_told_alone():
    told = {each.path: each.after for each in policy_changes(policy("default"), policy("none"))}

    assert ('"none"', '"none"') == (told["policy"], told["regulation.rule"])
    assert not any(path.startswith("regulation.") for path in set(told) - {"regulation.rule"})
