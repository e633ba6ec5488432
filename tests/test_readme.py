"""The README's table of regulation says what the page says that it is taken from."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEDS = {
    "jobs that re-read files past a memory limit": "thrash",
    "streams on a spinning disk": "spin",
    "the plain disk": "plain",
}
"""The README's words for the beds."""


def rows(text):
    """The first table of bed and regulation in the text: what stands where, by bed and rule."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    start = next(n for n, line in enumerate(lines) if line.startswith("| bed | regulation |"))
    columns = [cell.strip() for cell in lines[start].strip("|").split("|")]
    found, bed = {}, ""
    for line in lines[start + 2 :]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != len(columns):
            break
        bed = BEDS.get(cells[0], cells[0]) or bed
        rule = cells[1].strip("*").replace("best bound ", "")
        found[bed, rule] = dict(zip(columns[2:], cells[2:], strict=True))
    return found


def is_same(told, measured):
    """The README may leave out a range, and decimals of what all others are held against."""
    return told in (measured, re.split(r" [\[(]", measured)[0]) or (
        told == "1" and measured.startswith("1.00 [1.00, 1.00]")
    )


def test_every_row_of_the_readmes_table_stands_in_the_page():
    told = rows((ROOT / "README.md").read_text())
    page = rows((ROOT / "docs/bench-regulation.md").read_text())

    assert told.keys() == page.keys()
    assert len(told) == 3 * len(BEDS)
    wrong = [
        (key, column, cell, page[key][column])
        for key, cells in told.items()
        for column, cell in cells.items()
        if not is_same(cell, page[key][column])
    ]
    assert [] == wrong
