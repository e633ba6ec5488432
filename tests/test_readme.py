"""The README's table of regulation says what the page says that it is taken from."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEDS = {
    "6 jobs read a file of 150 MiB 240 times each, 400 MiB of memory for all": "reread (normal)",
    "8 `gzip -t` of cold files on a spinning disk": "spin-streams (normal)",
    "6 jobs look up rows in SQLite databases, memory for two": "lookups-read (normal)",
    "re-readers that arrive one second apart": "arrivals (normal)",
    "2 computing jobs before 4 re-readers": "spinners (small)",
    "64 jobs that mostly sleep": "sleepers (small)",
    "8 `gzip -1` of cold files on this machine's own disk": "plain (small)",
    "1,000 times `true`": "short (small)",
}
"""The README's words for the beds."""
COLUMNS = {"`none`": "none", "`default`": "default"} | {
    "`default`, the same batch again": "default (second batch)"
}
"""The README's words for the columns, where they are others."""


def rows(text, head):
    """The table that begins so: what stands where, by its first column and the others' heads."""
    lines = text[text.index(head) :].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    columns = table[0]
    return {
        cells[0]: dict(zip(columns[1:], cells[1:], strict=True))
        for cells, line in zip(table[2:], lines[2:], strict=True)
        if line.startswith("|") and len(cells) == len(columns)
    }


def figure(cell):
    """Of ``**7.6 s**`` and ``5.9 s (2 at a time)`` the number."""
    return re.sub(r" s\b.*", "", cell.strip("*"))


def test_every_row_of_the_readmes_table_stands_in_the_page():
    told = rows((ROOT / "README.md").read_text(), "| jobs | all at once |")
    page = rows((ROOT / "docs/bench-regulation.md").read_text(), "| bed | oracle k |")

    told = {words: cells for words, cells in told.items() if words in BEDS}
    assert list(BEDS) == list(told)
    assert [] == [
        (words, column, cell)
        for words, cells in told.items()
        for column, cell in cells.items()
        if figure(cell) != page[BEDS[words]][COLUMNS.get(column, column)]
    ]
