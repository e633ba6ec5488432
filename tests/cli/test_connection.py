"""Answers as they come over the socket: whole, in pieces, cut anywhere, and none of HTTP."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.api.connection import Response

OK = b"HTTP/1.1 200 OK\r\n"


def response(data):
    return Response(io.BufferedReader(io.BytesIO(data)))


def test_a_head_is_read_as_it_was_sent():
    found = response(OK + b"Last-Event-ID: 7\r\nX:y:z\r\nContent-Length: 0\r\n\r\n")

    assert (200, "OK") == (found.status, found.reason)
    assert {"Last-Event-ID": "7", "X": "y:z", "Content-Length": "0"} == found.headers


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        (b"Content-Length: 5\r\n\r\nhellonot of it", b"hello"),
        (b"\r\nuntil the end", b"until the end"),
        (b"transfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\nrest", b"hello!"),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n", b""),
    ],
)
def test_a_body_ends_where_its_head_says(rest, body):
    assert body == response(OK + rest).read()


def test_two_answers_follow_each_other_on_one_connection():
    file = io.BufferedReader(io.BytesIO(2 * (OK + b"Content-Length: 2\r\n\r\n{}")))

    assert [b"{}", b"{}"] == [Response(file).read() for _ in range(2)]


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_anywhere_is_never_taken_for_whole(answer):
    for length in range(len(answer)):
        with pytest.raises((ConnectionError, ValueError)):
            response(answer[:length]).read()


@given(st.binary(max_size=200))
def test_whatever_comes_is_an_answer_or_one_of_two_errors(data):
    with contextlib.suppress(ConnectionError, ValueError):
        response(data).read()
