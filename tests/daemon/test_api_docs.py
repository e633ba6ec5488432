"""docs/api.md says what the routes declare: each request, each key of its query, each body."""

import re
import typing
from pathlib import Path

import pytest
from served import Served

from iodaemon.api import model
from iodaemon.core.job import ScratchRequest
from iodaemon.daemon.http.route import ROUTES, SELECTOR_KEYS
from iodaemon.daemon.http.routes import hints
from iodaemon.daemon.http.submission import SubmittedJob

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ROW = re.compile(r"^\| `(GET|POST) ([^`?]+)`((?:, `/[^`]+`)*) \| (.*?) \|", re.MULTILINE)


def rows():
    """The table: by request, what its rows say of query and body."""
    found = {}
    for method, path, others, asked in ROW.findall(API):
        folder = path.rpartition("/")[0].removesuffix("/scratch")
        for each in [path, *(folder + other for other in re.findall(r"`(/[^`]+)`", others))]:
            request = f"{method} {each.replace('/ID', '/{id}')}"
            found[request] = f"{found.get(request, '')} {asked}"
    return found


def keys(told):
    """The words in it that may be keys."""
    words = set(re.findall(r"`(?:\{\")?(\w+)", told)) | set(re.findall(r'"(\w+)":', told))
    return words | ({*SELECTOR_KEYS} if "SELECTOR" in told else set())


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("daemon"))
    served.close()
    return served.server.routes


def test_every_request_has_its_row_and_every_row_its_request(routes):
    declared = {f"{route.method} {route.path}" for route in routes}

    assert declared - {"GET /v1/openapi.json"} == set(rows())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_key_of_a_query_and_of_a_body_is_in_its_row(route):
    told = keys(rows()[f"{route.method} {route.path}"])
    body = getattr(route.body, "__struct_fields__", ())

    assert set(route.query) - told == set()
    assert set(body) - told == set()


@pytest.mark.parametrize(
    ("paragraph", "declared"),
    [("SPEC", SubmittedJob), ("SCRATCH, the space", ScratchRequest), ("RUN", hints.ImportedRun)],
)
def test_what_a_body_may_have_is_told_and_nothing_else(paragraph, declared):
    told = re.search(rf"(?:^|\. ){paragraph}[^:]*: (.*?)\n\n", API, re.DOTALL | re.MULTILINE)[1]
    known = set(declared.__struct_fields__)
    choices = {"wait", "slow", "fail", "success", "always"}  # of fallback and output_on

    assert known == set(re.findall(r"`(\w+)`", told)) - choices


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        ("EVIDENCE", model.Evidence),
        ("LESSON", model.Lesson),
        ("LIMIT", model.LimitState),
        ("TRIAL", model.TrialStep),
        ("CHANGE", model.Changed),
    ],
)
def test_an_object_of_an_answer_has_the_keys_that_are_told(word, shape):
    told = re.search(rf"\b{word}: `([^`]*)`", API)[1].split()

    assert sorted(told) == sorted(typing.get_type_hints(shape))
