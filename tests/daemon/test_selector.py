"""Which jobs a request means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.daemon.http.selector import Ids
from iodaemon.errors import RequestError


def chosen(text, last_id=9):
    ids = Ids(text, last_id)
    return [job_id for job_id in range(1, 13) if job_id in ids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("3-5", [3, 4, 5]),
        ("1,4", [1, 4]),
        ("1, 4-5 ,last", [1, 4, 5, 9]),
        ("last", [9]),
        ("all", list(range(1, 13))),
        ("5-3", []),
        ("0", []),
        ("999999999999999999", []),
        ("11-999999999999999999", [11, 12]),
    ],
)
def test_a_selector_chooses(text, expected):
    assert expected == chosen(text)


@pytest.mark.parametrize(
    "text", [",", "a", "-1", "1-", "1--2", "1.5", "all,1", "last-1", "1\0", "9" * 19, "1 2"]
)
def test_what_is_no_selector_is_refused_with_what_to_write(text):
    with pytest.raises(RequestError) as caught:
        Ids(text, 9)

    assert "selects no jobs; write 7, 3-9, 1,4, last or all" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_is_a_selector_or_refused(text):
    try:
        ids = Ids(text, 9)
    except RequestError:
        return

    assert (1 in ids) in (True, False)
