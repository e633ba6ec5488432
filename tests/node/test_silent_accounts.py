"""Account databases (nsswitch.conf) that do not answer: real ones, in a namespace of their own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hanging import databases_of
from harness import NOBODY

pytestmark = pytest.mark.node


@pytest.fixture
def databases():
    place = Path(tempfile.mkdtemp(prefix="iod-nss-"))
    place.chmod(0o755)
    try:
        yield databases_of(place)
    finally:
        shutil.rmtree(place)


BESIDE = """
import asyncio, json, os, sys, time
from iodaemon.daemon import account

account._GROUPS_WITHIN_S = account._UID_WITHIN_S = 0.2

async def main():
    ticks, ending = 0, asyncio.Event()
    async def tick():
        nonlocal ticks
        while not ending.is_set():
            await asyncio.sleep(0.01)
            ticks += 1
    ticking = asyncio.create_task(tick())
    for uid in (0, 65534, 4001, 4002, 4003):
        await account.refresh_groups(uid)
    names = [account.user_name(uid) for uid in (0, 4001, 4002, 4003, 4004)]
    try:
        user = await asyncio.to_thread(account.parse_user, "ann")
    except Exception as error:
        user = str(error)
    known = account.groups_of_users().known(65534)
    ending.set()
    await ticking
    told = {"ticks": ticks, "names": names, "user": user}
    told["groups"] = None if known is None else sorted(known.value)
    print(json.dumps(told), flush=True)

asyncio.run(main())
"""


def speak(databases):
    """What a process that serves finds out, and how often its event loop came round meanwhile."""
    command = databases.command(sys.executable, "-c", BESIDE)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert 0 == ended.returncode, ended.stderr
    return json.loads(ended.stdout), ended.stderr.splitlines()


def test_the_event_loop_goes_on_while_nobody_says_who_is_who(databases):
    databases.fall_silent()

    told, said = speak(databases)

    # 'files' knows the name of root; the groups, also of root, are asked of all databases
    assert told["ticks"] >= 20  # five lookups of 0.2 s, and one of a name
    assert ["4001", "4002", "4003", "4004"] == told["names"][1:]
    assert told["groups"] is None
    assert "do not answer who 'ann' is; write the user's number" in told["user"]
    assert any("the account databases (nsswitch.conf) do not answer" in line for line in said)
    assert len(said) <= 3


def test_databases_that_answer_are_believed(databases):
    told, said = speak(databases)

    expected = os.getgrouplist(NOBODY.pw_name, NOBODY.pw_gid)
    assert ["root", "4001", "4002", "4003", "4004"] == told["names"]
    assert sorted(set(expected)) == told["groups"]
    assert "no user 'ann' on this machine; write a name or a number" == told["user"]
    assert [] == said
