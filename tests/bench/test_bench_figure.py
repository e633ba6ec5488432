"""The benchmarks' own arithmetic."""

import pytest
from bench_figure import (
    Check,
    Section,
    Series,
    alternate,
    figure,
    median_interval,
    percentile,
    replace_section,
    section_lines,
)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.05, 1.0), (0.5, 10.0), (0.95, 19.0), (1.0, 20.0)]
)
def test_a_percentile_is_a_value_that_was_measured(share, expected):
    values = [float(value) for value in range(20, 0, -1)]

    assert expected == percentile(values, share)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (0.01234, "0.0123"), (3.14159, "3.14"), (52.49, "52.5"), (20417.0, "20,417")],
)
def test_a_figure_has_three_digits_and_no_exponent(value, expected):
    assert expected == figure(value)


def test_each_round_begins_with_another_variant():
    order = []
    variants = {name: lambda name=name: order.append(name) for name in "abc"}

    results = alternate(variants, 4, lambda _: None)

    assert list("abcbcacababc") == order
    assert {"a": 4, "b": 4, "c": 4} == {name: len(each) for name, each in results.items()}


@pytest.mark.parametrize(
    ("value", "limit", "is_floor", "expected"),
    [
        (5.0, 5.0, False, True),
        (5.1, 5.0, False, False),
        (400, 400, True, True),
        (9, 10, True, False),
    ],
)
def test_a_target_is_met_at_its_limit(value, limit, is_floor, expected):
    assert expected == Check("x", value, limit, "ms", is_floor=is_floor).is_met


def test_a_table_has_medians_ranges_and_ratios_to_ours():
    section = Section(
        title="D0, starts",
        series=[
            Series("ours", [4.0, 2.0, 9.0], "ms"),
            Series("peer", [8.0, 8.0, 10.0], "ms", is_peer=True),
            Series("of it, a part", [1.0], "ms"),
            Series("absent", [], "ms", is_peer=True),
        ],
        checks=[Check("median", 4.0, 5.0, "ms"), Check("rate", 1.0, 2.0, "1/s", is_floor=True)],
        notes=["a note"],
    )

    assert [
        "### D0, starts",
        "",
        "| | median | p95 | min | max | ours : this |",
        "|---|---:|---:|---:|---:|---:|",
        "| ours | 4.00 ms |  | 2.00 | 9.00 |  |",
        "| peer | 8.00 ms |  | 8.00 | 10.0 | 0.500 |",
        "| of it, a part | 1.00 ms |  | 1.00 | 1.00 |  |",
        "| absent | not measured | | | | |",
        "",
        "- median: 4.00 ms, target <= 5.00: met",
        "- rate: 1.00 1/s, target >= 2.00: **missed**",
        "- a note",
        "",
    ] == section_lines(section)


def test_the_interval_of_a_median_is_that_of_order_statistics():
    """Of 20 values the 6th and the 15th enclose the median with 95.9 % (binomial)."""
    values = [float(value) for value in range(1, 21)]
    low, high = median_interval(values)

    assert (6.0 <= low <= 7.0, 14.0 <= high <= 15.0) == (True, True)
    assert (low, high) == median_interval(values)


def test_the_interval_of_equal_values_is_a_point():
    assert (2.0, 2.0) == median_interval([2.0] * 5)


def test_one_section_of_a_page_is_replaced_and_nothing_else():
    page = "# Page\n\n### A\n\nold\n\n### B\n\nold\n\n## Remarks\n\nkept\n"
    section = Section(title="B", series=[Series("ours", [1.0], "ms")], checks=[], notes=["new"])
    first = replace_section(page, section, "today")

    assert first.startswith("# Page\n\n### A\n\nold\n\n### B\n\n| |")
    assert first.endswith("- new\n- measured anew today\n\n## Remarks\n\nkept\n")
    assert replace_section(first, section, "today") == first


def test_a_section_that_the_page_does_not_have_is_not_put_anywhere():
    section = Section(title="C", series=[], checks=[], notes=[])

    with pytest.raises(ValueError, match="no section 'C'"):
        replace_section("### A\n", section, "today")
