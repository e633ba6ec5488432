"""A random client, and random deaths beside it: one round is some operations, then a reckoning."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from points import DEADLY, POINTS

CLIENTS = 3
"""Threads that ask at the same time."""
OPERATIONS = 30
"""In a round, of all clients together."""

WISHES = {
    "submit": 30,
    "cancel": 12,
    "suspend": 14,
    "resume": 12,
    "requeue": 12,
    "show": 10,
    "wait": 10,
}
"""What is asked, and how often in relation."""
KINDS = {"short": 5, "gated": 4, "deaf": 1, "family": 2}
DEATHS = {
    "point": 5,
    "daemon": 2,
    "supervisor": 2,
    "anchor": 1,
    "launcher": 1,
    "both": 1,
    "all": 1,
    "none": 2,
}
"""What happens to the processes in a round."""
UNARMED = ("daemon away", "supervisor away", "another supervisor")
"""Plays whose points are passed only when nobody asks anything."""
ROOT_SIDE = ("anchor.", "supervisor.", "reap.")
"""Points of anchor and supervisor; both reap."""


def pick(chance, weights):
    return chance.choices(list(weights), list(weights.values()))[0]


class Round:
    """Some operations by several clients while processes die; then everything settles."""

    def __init__(self, player, chance):
        self.player, self.chance = player, chance
        self.jobs = []
        self.armed = []
        self.deaths = Counter()

    def play(self):
        """What is wrong afterwards."""
        stories = [self._story(OPERATIONS // CLIENTS) for _ in range(CLIENTS)]
        death = pick(self.chance, DEATHS)
        if death == "point":
            self._arm()
        after_s = self.chance.uniform(0.0, 1.0)
        killer = threading.Timer(after_s, self._kill, (death,))
        killer.start()
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(self._live, stories))
        killer.join()
        self.deaths.update(set(self.armed) - set(self.player.server.armed()))
        return self.player.settle()

    def _story(self, length):
        """What one client will ask: drawn beforehand, so that the seed alone decides it."""
        draw = self.chance
        return [
            (pick(draw, WISHES), pick(draw, KINDS), draw.randrange(4), draw.random())
            for _ in range(length)
        ]

    def _arm(self):
        """One to three points, each at its first to sixth passage."""
        candidates = [point for point, play in sorted(POINTS.items()) if play not in UNARMED]
        self.armed = self.chance.sample(candidates, self.chance.randint(1, 3))
        for point in self.armed:
            self.player.jobs_die |= point in DEADLY
        of_root_side = [point for point in self.armed if point.startswith(ROOT_SIDE)]
        self.player.root_side_died |= len(of_root_side) > 1  # the anchor may pass the second one
        for point in self.armed:
            self.player.server.arm(point, passage=self.chance.randint(1, 6))

    def _kill(self, death):
        player = self.player
        match death:
            case "daemon":
                player.kill_daemon()
            case "supervisor":
                player.kill_supervisor()
            case "anchor":
                player.kill_anchor()
            case "launcher":
                player.kill_launcher()
            case "both":
                player.kill_daemon()
                player.kill_supervisor()
            case "all":
                player.kill_daemon()
                player.kill_root_side()
            case _:
                return
        self.deaths[death] += 1

    def _live(self, story):
        for wish, kind, code, where in story:
            job = self.jobs[int(where * len(self.jobs))] if self.jobs else None
            if wish == "submit" or job is None:
                job = self.player.submit(kind, code, hold=where < 0.1)
                if job is not None:
                    self.jobs.append(job)
            elif wish == "show":
                self.player.look(job)
            else:
                getattr(self.player, wish)(job)
