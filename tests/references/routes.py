"""The references of the HTTP API: what each route answers, one file a route."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import route_script
from reference import HERE, differences, lines_of
from scripted import run_scripted

FOLDER: Final = HERE / "routes"


def record(directory: Path) -> tuple[dict[str, list[route_script.Case]], set[str], list[str]]:
    """What each route answers now, all routes that there are, and answers that are undeclared."""
    cases: dict[str, list[route_script.Case]] = {}
    routes: set[str] = set()
    undeclared: list[str] = []

    def script(daemon: route_script.ScriptedDaemon) -> None:
        recorded = route_script.record_routes(daemon)
        cases.update(recorded.routes)
        undeclared.extend(recorded.undeclared)
        routes.update(daemon.routes())

    run_scripted(directory, route_script.CONFIG, script)
    return json.loads(json.dumps(cases)), routes, undeclared


def file_of(route: str) -> Path:
    """Where a route's reference is: ``POST /v1/jobs/{id}/cancel``, post_jobs_id_cancel.json."""
    method, path = route.split()
    words = [word.strip("{}") for word in path.removeprefix("/v1").split("/") if word]
    return FOLDER / f"{'_'.join([method.lower(), *words])}.json"


def write(cases: dict[str, list[route_script.Case]]) -> None:
    """Write all references anew."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for route, answers in cases.items():
        file_of(route).write_text(lines_of(answers))


def _by_case(answers: list[route_script.Case]) -> dict[str, route_script.Case]:
    """By what tells them apart: the case, the request, and which of those it is."""
    found: dict[str, route_script.Case] = {}
    for each in answers:
        name = f"({each['case']}, {each['request']})"
        found[name if name not in found else f"{name} {len(found)}"] = each
    return found


def compare(cases: dict[str, list[route_script.Case]]) -> Sequence[str]:
    """Every difference from the references, one line each."""
    found = []
    for route, answers in cases.items():
        path = file_of(route)
        if not path.exists():
            found.append(f"{route}: there is no {path.name}")
            continue
        stored = _by_case(json.loads(path.read_text()))
        found += differences(stored, _by_case(answers), route)
    known = {file_of(route) for route in cases}
    left = (path for path in sorted(FOLDER.glob("*.json")) if path not in known)
    return [*found, *(f"{path.name}: no route was asked for it" for path in left)]
