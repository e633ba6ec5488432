"""``iod doctor`` beside a daemon: its places are the ones that are examined."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.node


def tell(daemon, path, value):
    daemon.answers[path] = (200, json.dumps(value).encode())


@pytest.fixture
def told(daemon, tmp_path, monkeypatch):
    """A daemon that says where its places are and how it suspends."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    places = {"state_dir": tmp_path / "its state", "runtime_dir": tmp_path / "its-run"}
    rows = [{"key": key, "value": json.dumps(str(path))} for key, path in places.items()]
    rows += [{"key": "supervisor_dir", "value": '"none"'}, {"key": "slot", "value": '"core"'}]
    tell(daemon, "/v1/config", {"settings": rows})
    means = "signals: no cgroup can be used in /x (Permission denied)"
    measured = {"suspend": means, "lack": "unusable"}
    tell(daemon, "/v1/node", {"backend": "linux", "measured": measured})
    return places


def test_the_places_of_the_daemon_that_runs_are_examined(iod, told):
    findings = {finding["what"]: finding for finding in iod("doctor", "--json").json}

    assert findings["disk of the state"]["values"]["path"] == str(told["state_dir"])
    run = told["runtime_dir"]
    assert findings["runtime directory"]["measured"].startswith(f"{run}/supervisor.sock; ")
    assert findings["anchor's lock"]["measured"].startswith(f"{run}/lock ")
    assert [] == [path for path in told.values() if path.exists()]


def test_a_daemon_that_refuses_is_left_out(iod, daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    refusal = {"error": {"code": "not_permitted", "message": "not yours"}}
    daemon.answers["/v1/node"] = (403, json.dumps(refusal).encode())

    result = iod("doctor", "--json")

    assert result.code == 0
    assert "daemon" not in [finding["what"] for finding in result.json]


@pytest.mark.parametrize("line", ["cancel_grase = 5", "policy = "])
def test_a_wrong_configuration_is_a_finding_beside_all_others(
    iod, daemon, tmp_path, monkeypatch, line
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "iodaemon" / "config.toml"
    file.parent.mkdir()
    file.write_text(f"{line}\n")
    tell(daemon, "/v1/node", {"backend": "linux", "measured": {"suspend": "cgroup"}})

    result = iod("--config", str(file), "doctor", "--json")

    findings = {finding["what"]: finding for finding in result.json}
    assert 1 == result.code
    assert "broken" == findings["configuration"]["verdict"]
    assert str(file) in findings["configuration"]["measured"]
    assert {"daemon", "topology", "disk of the state", "anchor's lock"} <= findings.keys()
