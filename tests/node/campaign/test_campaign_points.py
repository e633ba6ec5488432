"""A process dies at each of its points; afterwards all is as if it had not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from player import Player
from plays import play_at
from points import POINTS

pytestmark = pytest.mark.node

SIDE_BY_SIDE = 4


def play_all(means, points):
    """Play a round at each of these points on one server; what was wrong, by point."""
    wrong = {}
    player = Player(means)
    with player.server:
        player.start()
        for point in points:
            try:
                found = play_at(player, point)
            except Exception as error:  # noqa: BLE001 - told with its point
                wrong[point] = [repr(error)]
                break
            if found:
                wrong[point] = found
    return wrong


def test_a_death_at_any_point_loses_nothing_repeats_nothing_and_leaves_nothing():
    every = sorted(POINTS)
    parts = [every[first::SIDE_BY_SIDE] for first in range(SIDE_BY_SIDE)]
    means = ["cgroup", "signals"] * (SIDE_BY_SIDE // 2)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as servers:
        results = list(servers.map(play_all, means, parts))

    assert {} == {point: found for result in results for point, found in result.items()}
