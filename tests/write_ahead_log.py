"""SQLite's write-ahead log as a power failure may leave it."""

import shutil
import struct

HEADER, FRAME_HEADER, PAGE = 32, 24, 4096
"""Sizes in a write-ahead log, bytes (https://www.sqlite.org/fileformat2.html#the_write_ahead_log)."""
FRAME = FRAME_HEADER + PAGE


def laid_out(folder, database, log):
    """This database and log as a machine would find them at its start."""
    path = folder / "found" / "journal.db"
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    path.write_bytes(database)
    path.with_name("journal.db-wal").write_bytes(log)
    return path


def places(first, last, every):
    """Where to cut: all headers and edges byte by byte, pages in steps."""
    for place in range(first, last + 1):
        within = (place - HEADER) % FRAME
        if within <= FRAME_HEADER + 8 or within >= FRAME - 8 or within % every == 0:
            yield place


def commits(log):
    """Where each transaction of the log ends, bytes.

    A frame's header has the size of the database at the end of a transaction, else 0, and the salts
    of the log's own header, unless it is left from before the log began anew
    (https://www.sqlite.org/fileformat2.html#the_write_ahead_log).
    """
    salts, ends = log[16:24], []
    for place in range(HEADER, len(log) - FRAME + 1, FRAME):
        if log[place + 8 : place + 16] != salts:
            break
        if struct.unpack(">I", log[place + 4 : place + 8])[0]:
            ends.append(place + FRAME)
    return ends
