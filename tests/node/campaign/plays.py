"""What is asked of a server while one of its processes dies at a point; see ``points``."""

import contextlib

from harness import until
from points import DEADLY, POINTS

from iodaemon.errors import IodaemonError

FIRES_WITHIN_S = 15.0


def daily(player):
    quick, gated = player.submit("short", code=3), player.submit("gated")
    player.until_running(gated)
    player.suspend(gated)
    player.resume(gated)
    player.requeue(gated)
    deaf = player.submit("deaf")
    player.until_running(deaf)
    player.cancel(deaf)
    player.wait(quick)
    player.look(quick)


def stop(player):
    gated, still = player.submit("gated"), player.submit("gated", code=4)
    player.until_running(gated)
    player.until_running(still)
    player.suspend(still)
    player.stop()
    player.revive()


def adoption(player):
    """The point is armed once there is no daemon: the one before passes it as well."""
    [point] = player.server.armed()
    player.server.disarm()
    gated, still = player.submit("gated"), player.submit("gated", code=4)
    player.until_running(gated)
    player.until_running(still)
    player.suspend(still)
    player.kill_daemon()
    player.server.arm(point)
    player.revive()


def another_supervisor(player):
    player.stop()
    until(lambda: not player.server.supervisor_lives(), "end of the root side")
    player.revive()
    player.submit("short")


def supervisor_away(player):
    """Whoever dies next is the anchor, which lets all run on and starts another supervisor."""
    gated = player.submit("gated")
    player.until_running(gated)
    player.suspend(gated)
    player.root_side_died = True
    player.kill_supervisor()
    until(lambda: not player.server.armed(), "an anchor that goes on", FIRES_WITHIN_S)
    player.revive()


def daemon_away(player):
    gated = player.submit("gated")
    player.until_running(gated)
    player.suspend(gated)
    player.kill_daemon()
    until(lambda: not player.server.armed(), "a supervisor that lets go", FIRES_WITHIN_S)
    player.revive()


PLAYS = {
    "daily": daily,
    "stop": stop,
    "adoption": adoption,
    "another supervisor": another_supervisor,
    "supervisor away": supervisor_away,
    "daemon away": daemon_away,
}


def play_at(player, point):
    """One round: arm the point, play, let all settle; what is wrong then."""
    player.jobs_die |= point in DEADLY
    player.server.arm(point)
    PLAYS[POINTS[point]](player)
    player.gate.touch()
    found = []
    with contextlib.suppress(IodaemonError):
        player.revive()
    try:
        until(lambda: not player.server.armed(), f"passage of {point}", FIRES_WITHIN_S)
    except AssertionError as error:
        found.append(str(error))
    return found + player.settle()
