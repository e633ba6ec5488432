"""What devices moved, and what others than jobs did."""

from collections import Counter

from iodaemon.core.sample import DeviceCounters
from iodaemon.daemon.device_book import DeviceBook

SECTOR = 512


def device(read=0, written=0, **fields):
    names = set(DeviceCounters.__struct_fields__)
    moved = {"read_sectors": read // SECTOR, "written_sectors": written // SECTOR}
    return DeviceCounters(**{**dict.fromkeys(names, 0), **moved, **fields})


class Watched:
    """A book that is told what devices and jobs have moved until now, in sectors."""

    def __init__(self):
        self.book = DeviceBook()
        self.moved = Counter()

    def take(self, jobs=None, **devices):
        for (place, direction), size in (jobs or {}).items():
            self.moved["0", place, direction] = size * SECTOR
        read = {name: device(*(size * SECTOR for size in pair)) for name, pair in devices.items()}
        self.book.take(read, self.moved)

    def others(self, name, direction):
        return dict(self.book.totals())[name].other_bytes[direction] // SECTOR


def test_what_was_moved_before_the_daemon_was_there_is_nobodys():
    watched = Watched()

    watched.take(sda=(1000, 1000))
    watched.take(sda=(1010, 1000))

    assert (10, 0) == (watched.others("sda", "read"), watched.others("sda", "write"))


def test_what_jobs_wrote_ahead_of_the_device_is_not_others_when_it_arrives():
    watched = Watched()
    watched.take(sda=(0, 0))

    watched.take({("sda", "write"): 100}, sda=(0, 0))
    watched.take(sda=(0, 60))
    watched.take(sda=(0, 105))

    assert 5 == watched.others("sda", "write")


def test_the_total_of_others_never_falls():
    watched = Watched()
    watched.take(sda=(0, 0))
    watched.take(sda=(0, 50))

    watched.take({("sda", "write"): 100}, sda=(0, 50))

    assert 50 == watched.others("sda", "write")


def test_what_jobs_moved_on_an_unknown_disk_is_taken_from_those_that_moved():
    watched = Watched()
    watched.take(sda=(0, 0), sdb=(0, 0))

    watched.take({("unknown", "read"): 60, ("several", "read"): 30}, sda=(80, 0), sdb=(40, 0))

    assert (20, 10) == (watched.others("sda", "read"), watched.others("sdb", "read"))


def test_what_an_unplaced_job_wrote_ahead_is_taken_off_later():
    watched = Watched()
    watched.take(sda=(0, 0))

    watched.take({("unknown", "write"): 100}, sda=(0, 0))
    watched.take(sda=(0, 100))

    assert 0 == watched.others("sda", "write")


def test_what_jobs_moved_on_no_disk_is_taken_from_none():
    watched = Watched()
    watched.take(sda=(0, 0))

    watched.take({("none", "read"): 60}, sda=(80, 0))

    assert 80 == watched.others("sda", "read")


def test_another_device_of_the_same_name_begins_anew():
    book = DeviceBook()
    book.take({"sda": device(read=100 * SECTOR, reads=10)}, {})
    book.take({"sda": device(read=110 * SECTOR, reads=11)}, {})

    book.take({"sda": device(read=4 * SECTOR, reads=1)}, {})
    book.take({"sda": device(read=7 * SECTOR, reads=2)}, {})

    [(_, totals)] = book.totals()
    assert (7, 13) == (totals.bytes["read"] // SECTOR, totals.other_bytes["read"] // SECTOR)


def test_a_time_that_wraps_goes_on_growing():
    book = DeviceBook()
    book.take({"sda": device(queue_ms=2**32 - 500, reads=1)}, {})
    book.take({"sda": device(queue_ms=1500, reads=2)}, {})

    [(_, totals)] = book.totals()
    assert 2**32 / 1000.0 + 1.5 == totals.queue_s
