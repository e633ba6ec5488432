"""What is asked of a server while one of its processes dies at a point; see ``points``."""

import contextlib

from harness import until
from points import POINTS

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


def another_keeper(player):
    player.stop()
    until(lambda: not player.server.keeper_lives(), "end of the keeper")
    player.revive()
    player.submit("short")


def bereaved(player):
    gated = player.submit("gated")
    player.until_running(gated)
    player.kill_shim(gated)
    player.cancel(gated)


def daemon_away(player):
    gated = player.submit("gated")
    player.until_running(gated)
    player.suspend(gated)
    player.kill_daemon()
    until(lambda: not player.server.armed(), "a keeper that lets go", FIRES_WITHIN_S)
    player.revive()


def both_away(player):
    gated = player.submit("gated")
    player.until_running(gated)
    player.suspend(gated)
    player.kill_daemon()
    player.kill_keeper()
    until(lambda: not player.server.armed(), "a shim that lets go", FIRES_WITHIN_S)
    player.revive()


PLAYS = {
    "daily": daily,
    "stop": stop,
    "adoption": adoption,
    "another keeper": another_keeper,
    "bereaved": bereaved,
    "daemon away": daemon_away,
    "both away": both_away,
}


def play_at(player, point):
    """One round: arm the point, play, let all settle; what is wrong then."""
    player.shims_die |= point.startswith(("shim.", "claim.", "file."))
    player.jobs_die |= point.startswith("job.")
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
