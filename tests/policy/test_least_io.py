"""Where a job goes."""

from queueing import queued
from scene import MB, Scene, platform

from iodaemon.core.view import NotNow
from iodaemon.policy.placement.least_io import Rule


def choose(scene, job):
    return Rule().choose(scene.queue(job).view(), job)


def test_the_socket_with_the_least_expected_io_is_chosen():
    scene = Scene(platform(4, 4)).live(1, 0, moved=9 * MB).live(2, 1, moved=5 * MB).live(3, 1)

    chosen = choose(scene, queued(9))

    assert chosen == 1


def test_declared_io_counts_where_nothing_is_measured():
    scene = Scene(platform(4, 4))
    scene.live(1, 0, moved=None, io_rate_bytes_per_s=50e6).live(2, 1, moved=40 * MB)

    chosen = choose(scene, queued(9))

    assert chosen == 1


def test_a_suspended_job_still_counts_with_what_it_will_move():
    scene = Scene(platform(4, 4)).live(1, 0, held=True, last=30 * MB, run_s=1.0)
    scene.live(2, 1, moved=20 * MB)

    chosen = choose(scene, queued(9))

    assert chosen == 1


def test_a_job_that_computes_just_now_still_counts_with_the_io_it_is_known_to_do():
    scene = Scene(platform(4, 4)).live(1, 0, moved=0, io_rate_bytes_per_s=50e6)
    scene.live(2, 1, moved=20 * MB)

    chosen = choose(scene, queued(9))

    assert chosen == 1


def test_equal_io_goes_by_the_most_free_slots():
    scene = Scene(platform(4, 4)).live(1, 0)

    chosen = choose(scene, queued(9))

    assert chosen == 1


def test_all_equal_goes_by_the_lowest_number():
    chosen = choose(Scene(platform(4, 4)), queued(9))

    assert chosen == 0


def test_a_socket_without_enough_slots_is_never_chosen():
    scene = Scene(platform(4, 4)).live(1, 1, cpus=3).live(2, 0, moved=90 * MB)

    chosen = choose(scene, queued(9, cpus=2))

    assert chosen == 0


def test_a_heavy_job_prefers_the_socket_near_its_device_among_equals():
    chosen = choose(Scene(platform(4, 2, near=[1])), queued(9, rate=10e6))

    assert chosen == 1


def test_less_io_outranks_a_near_device():
    scene = Scene(platform(4, 4, near=[1])).live(1, 1, moved=1 * MB)

    chosen = choose(scene, queued(9, rate=10e6))

    assert chosen == 0


def test_a_job_below_the_mean_of_the_others_is_not_heavy():
    scene = Scene(platform(4, 4, 4, near=[2])).live(1, 0, moved=20 * MB)

    chosen = choose(scene, queued(9, rate=10e6))

    assert chosen == 1


def test_a_job_whose_io_is_unknown_is_not_heavy():
    chosen = choose(Scene(platform(4, 4, near=[1])), queued(9))

    assert chosen == 0


def test_a_job_that_fits_nowhere_now_is_told_what_is_free():
    scene = Scene(platform(2, 3)).live(1, 0).live(2, 1, cpus=2)

    answer = choose(scene, queued(9, cpus=2))

    assert isinstance(answer, NotNow)
    assert answer.reason.code == "Slots"
    assert answer.reason.text == "needs 2 free CPUs on one socket; most free now: 1"
