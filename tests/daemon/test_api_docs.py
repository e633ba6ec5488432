"""docs/api.md, the daemon and the client agree: requests, keys of queries, bodies and answers."""

import re
import typing
from contextlib import closing
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

# -- requests --------------------------------------------------------------------------------------


def rows():
    """The table: by request, what its rows say of query and body."""
    found = {}
    for method, path, others, asked in ROW.findall(API):
        folder = path.rpartition("/")[0].removesuffix("/scratch")
        for each in [path, *(folder + other for other in re.findall(r"`(/[^`]+)`", others))]:
            request = f"{method} {each.replace('/ID', '/{id}')}"
            found[request] = f"{found.get(request, '')} {asked}"
    return found


def test_every_request_has_its_row_and_every_row_its_request(tmp_path):
    with closing(Served(tmp_path)) as served:
        declared = {f"{route.method} {route.path}" for route in served.server.routes}

    assert declared - {"GET /v1/openapi.json"} == set(rows())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_key_of_a_query_and_of_a_body_is_in_its_row(route):
    told = rows()[f"{route.method} {route.path}"]
    known = set(re.findall(r"`(?:\{\")?(\w+)", told)) | set(re.findall(r'"(\w+)":', told))
    known |= {*SELECTOR_KEYS} if "SELECTOR" in told else set()

    assert set() == {*route.query, *getattr(route.body, "__struct_fields__", ())} - known


@pytest.mark.parametrize(
    ("paragraph", "declared"),
    [("SPEC", SubmittedJob), ("SCRATCH, the space", ScratchRequest), ("RUN", hints.ImportedRun)],
)
def test_what_a_body_may_have_is_told_and_nothing_else(paragraph, declared):
    told = re.search(rf"(?:^|\. ){paragraph}[^:]*: (.*?)\n\n", API, re.DOTALL | re.MULTILINE)[1]
    choices = {"wait", "slow", "fail", "success", "always"}  # of fallback and output_on

    assert set(declared.__struct_fields__) == set(re.findall(r"`(\w+)`", told)) - choices


# -- answers ---------------------------------------------------------------------------------------


def words(name):
    """The keys of an object that is told as ``NAME: `key key{...} ...```."""
    text = re.search(rf"\b{name}: `([^`]*)`", API)[1]
    return re.sub(r"\{[^}]*\}", "", text).split()


def inner(name):
    """The keys in braces after a word of JOB."""
    return re.search(rf"\b{name}\{{([^}}]*)\}}", API)[1].split(",")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("JOB", model.Job),
        ("HINT", model.Hint),
        ("SUM", model.KeyedSum),
        ("EVIDENCE", model.Evidence),
        ("LESSON", model.Lesson),
        ("LIMIT", model.LimitState),
        ("TRIAL", model.TrialStep),
        ("CHANGE", model.Changed),
    ],
)
def test_an_object_of_an_answer_has_the_keys_that_are_told(name, shape):
    assert sorted(typing.get_type_hints(shape)) == sorted(words(name))


@pytest.mark.parametrize(
    "name", ["reason", "bandwidth", "predicted", "expected", "phase", "scratch"]
)
def test_what_is_told_in_braces_are_the_keys_of_that_part_of_a_job(name):
    """That the daemon makes all of them, and no others: tests/references/test_routes.py."""
    assert inner(name) == list(typing.get_type_hints(getattr(model, name.title())))
