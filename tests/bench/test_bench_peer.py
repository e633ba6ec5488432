"""Peers that are not there are named."""

import importlib.util
import shutil

import bench_peer


def test_every_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert ["task-spooler", "parallel", "findutils", "SimPy"] == bench_peer.missing()


def test_a_peer_that_is_installed_is_not_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/sh")

    assert ["parallel"] == bench_peer.missing()  # another program of that name
