"""Processes die at each of their points and at random; afterwards all is as if they had not."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from chance import Round
from cuts import cut_round
from player import Player
from plays import play_at
from points import POINTS, are_passed
from write_ahead_log import FRAME_HEADER

pytestmark = [pytest.mark.node, pytest.mark.slow]

SIDE_BY_SIDE = 4
ROUNDS = 3
EVERY = 509
"""Of a page of the log every so many bytes are cut at here."""


def play_all(means, points):
    """Play a round at each of these points on one server; what was wrong, by point."""
    wrong = {}
    player = Player(means)
    with player.server:
        player.start()
        for point in are_passed(points, means):
            try:
                found = play_at(player, point)
            except Exception as error:
                error.add_note(f"at {point}, {means}, after {wrong}")
                raise
            if found:
                wrong[point] = found
    return wrong


@pytest.mark.timeout(400)  # a minute's work on two cores that nobody else wants
def test_a_death_at_any_point_loses_nothing_repeats_nothing_and_leaves_nothing():
    every = sorted(POINTS)
    parts = [every[first::SIDE_BY_SIDE] for first in range(SIDE_BY_SIDE)]
    means = ["cgroup", "signals"] * (SIDE_BY_SIDE // 2)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as servers:
        results = list(servers.map(play_all, means, parts))

    assert {} == {point: found for result in results for point, found in result.items()}


@pytest.mark.parametrize("seed", [1])
def test_random_operations_and_deaths_lose_nothing_repeat_nothing_and_leave_nothing(
    means, seed, tmp_path
):
    chance = random.Random(seed)
    player = Player(means, chance)
    with player.server:
        player.start()
        wrong = [fault for _ in range(ROUNDS) for fault in Round(player, chance).play()]
        cuts, lost = cut_round(player, tmp_path, EVERY)

    assert cuts > FRAME_HEADER
    assert [] == lost
    assert [] == wrong, f"make campaign ARGS='--seed {seed}' asks the same, and more"
