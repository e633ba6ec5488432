"""A disk that turns read-only under the daemon: jobs go elsewhere, it comes back by itself."""

import contextlib
import itertools
import shutil

import msgspec
import pytest
from harness import until
from scratching import both_disks, disks, needs_root, read_only
from tiering import _lasting_tiered, make_tiered, tables

from iodaemon.config import load_config
from iodaemon.core.storage import Storage
from iodaemon.daemon.tiering import find_unusable, live_tiers, look_at_disks

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]


def test_nobody_is_held_for_a_disk_that_turned_read_only(make_tiered, disks):
    server = make_tiered(text=tables(disks[:1]))
    what = f"tier fast: disk {disks[0]} is read-only; mount it writable"
    with read_only(disks[0]):
        falls = server.sent(
            "--scratch", "2M", "--scratch-fallback", "slow", text="test $IOD_TIER = slow"
        )
        assert [("COMPLETED", 0)] == server.outcome(falls)
        waits = server.sent("--scratch", "2M", text='echo x > "$IOD_SCRATCH/f"')
        until(lambda: what in server.says("why", str(waits)), "its waiting")
        [shown] = server.client.node()["disks"]

        assert "PENDING" == server.job(waits)["state"]
        assert f"not usable: {what}" in shown["problem"]
        assert (0, []) == (shown["free_bytes"], shown["jobs"])
        assert what in server.says("node")

    assert [("COMPLETED", 0)] == server.outcome(waits)
    assert "" == server.client.node()["disks"][0]["problem"]
    told = "".join(path.read_text() for path in server.logs())
    assert 1 == told.count(f"event=disk_out disk={disks[0]} ")
    assert 1 == told.count(f"event=disk_back disk={disks[0]}")


@contextlib.contextmanager
def filled(disk):
    """It has no name left meanwhile."""
    filler = disk / "filler"
    filler.mkdir()
    try:
        with contextlib.suppress(OSError):  # no space is left at some time
            for number in itertools.count():
                (filler / f"{number}").touch()
        yield
    finally:
        shutil.rmtree(filler)


def test_a_look_tells_disks_that_work_from_those_that_do_not(disks, tmp_path):
    (tmp_path / "config.toml").write_text(tables(disks, slow=""))
    config = load_config(tmp_path / "config.toml", {"HOME": "/nonexistent"}, 1000, {})
    tiers = live_tiers(config, look_at_disks(config), ())
    assert {} == find_unusable(config, tiers, look_at_disks(config))

    with read_only(disks[0]):
        [(out, why)] = find_unusable(config, tiers, look_at_disks(config)).items()
    assert (str(disks[0]), True) == (out, "read-only" in why)

    with filled(disks[1]):
        [(out, why)] = find_unusable(config, tiers, look_at_disks(config)).items()
    assert (str(disks[1]), True) == (out, "has no inode left" in why)

    [tier] = tiers
    [node] = tier.storage.nodes
    others = tuple(msgspec.structs.replace(disk, filesystem="1") for disk in node.disks)
    storage = Storage(nodes=(msgspec.structs.replace(node, disks=others),))
    before = [msgspec.structs.replace(tier, storage=storage)]
    found = find_unusable(config, before, look_at_disks(config))
    assert {str(disk) for disk in disks} == set(found)
    assert all("another file system" in why for why in found.values())
