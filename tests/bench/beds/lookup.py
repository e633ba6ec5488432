"""A job: random lookups in a database of beds/lookups.py.

lookup.py DATABASE COUNT SEED MAPPED_BYTES. With MAPPED_BYTES above 0 it makes no read calls.
"""

import random
import sqlite3
import sys

PAGES = 100
"""Of SQLite's own cache: what is found again is found in the kernel's."""


def main() -> None:
    """Look up so many rows."""
    path, count, seed, mapped = sys.argv[1], *map(int, sys.argv[2:5])
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    database.execute(f"PRAGMA cache_size = {PAGES}")
    database.execute(f"PRAGMA mmap_size = {mapped}")
    (rows,) = database.execute("SELECT max(id) FROM item").fetchone()
    rng = random.Random(seed)
    for _ in range(count):
        row = rng.randint(1, rows)
        found = database.execute("SELECT id, length(data) FROM item WHERE id = ?", (row,))
        if found.fetchone()[0] != row:
            sys.exit(1)


main()
