"""What a machine can check of the whole tree: names, imports, data, commands in the docs."""

import ast
import contextlib
import functools
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from documented import CALLS, iod_calls
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.cli.command import parse, read
from iodaemon.cli.program import GLOBALS, find
from iodaemon.cli.session import Session
from iodaemon.cli.typer_app import command_of, root
from iodaemon.config import load_policy

ClickException = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "iodaemon").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

ROOT_SIDE = [path.stem for path in FILES if path.parent == ROOT / "iodaemon/supervisor"]
HEAVY = ("aiohttp", "msgspec", "psutil", "pyudev", "sqlite3", "asyncio")
"""What the command line must not wait for."""

# -- names -----------------------------------------------------------------------------------------


def test_no_two_files_of_tests_have_one_name():
    """They are no packages: pytest could not import both."""
    names = [path.name for path in TESTS if path.name != "conftest.py"]

    assert [] == sorted(name for name in set(names) if names.count(name) > 1)


def test_no_module_is_named_after_nothing_and_nothing_is_left_for_later():
    marks = [
        (str(path), mark)
        for path in FILES
        for mark in re.findall(r"#.*\b(?:TODO|FIXME|XXX|HACK)\b.*", path.read_text())
    ]

    assert [] == [path for path in FILES if {path.stem, path.parent.name} & FORBIDDEN_NAMES]
    assert [] == marks


# -- imports ---------------------------------------------------------------------------------------


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        **options,
    )


def test_the_root_side_needs_nothing_but_the_standard_library_and_itself():
    code = (
        f"import importlib, sys; sys.path.append({str(ROOT)!r}); "
        f"[importlib.import_module('iodaemon.supervisor.' + n) for n in {ROOT_SIDE!r}]; "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] == 'iodaemon'))"
    )

    ended = python("-I", "-S", "-c", code)

    assert (0, "") == (ended.returncode, ended.stderr)
    ours = ast.literal_eval(ended.stdout)
    assert [] == [m for m in ours if not re.match(r"iodaemon(\.supervisor|$)", m)]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("queue",), 7),
        (("show", "1"), 7),
        (("submit", "--", "/bin/true"), 7),
        (("cancel", "1"), 7),
        (("wait", "1"), 7),
        (("logs", "1"), 7),
        (("phase", "io"), 0),
        (("--version",), 0),
        (("--help",), 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_a_hot_verb_imports_none_of_the_servers_libraries(tmp_path, words, code):
    program = (
        "import json, sys\n"
        "from iodaemon.cli import main\n"
        "code = main(json.loads(sys.argv[1]))\n"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)\n"
    )
    call = ["--api", str(tmp_path / "none.sock"), *words] if code else [*words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    ended = python("-c", program, json.dumps(call), env=environment)

    returned, modules = json.loads(ended.stderr.splitlines()[-1])
    assert code == returned
    assert [] == [name for name in HEAVY if name in modules]


def test_every_module_can_be_imported():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in FILES
        if path.is_relative_to(ROOT / "iodaemon") and path.name != "__main__.py"
    ]

    assert [] == [name for name in modules if not importlib.import_module(name)]


# -- data ------------------------------------------------------------------------------------------

POLICIES = sorted((ROOT / "policies").glob("*.toml"))


def test_the_shipped_policies_load_and_say_what_they_are_for():
    for path in POLICIES:
        policy = load_policy(str(path), overrides={}, search=())

        assert path.stem == policy.rules.name
        assert path.read_text().startswith("# ")


# -- README ----------------------------------------------------------------------------------------


def understood(words):
    """Go down the verbs as the program does; all words are parsed, nothing is run."""
    command, name, rest, context = root(), "iod", list(words), None
    while True:
        context = command.make_context(name, rest, parent=context, obj=Session())
        if not hasattr(command, "resolve_command"):
            return
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, rest)


def test_every_command_in_the_documentation_is_understood():
    wrong = []
    for page, words in CALLS:
        try:
            with contextlib.suppress(typer.Exit):  # --help and --version end there
                understood(words)
        except ClickException as error:
            wrong.append((page, shlex.join(words), error.message))

    assert [] == wrong


def called_by_typer(verb, name, words):
    """What typer calls a verb with."""
    seen = []

    @functools.wraps(verb.function)
    def record(session=None, **values):
        seen.append(values)
        return 0

    command = command_of(name, verb._replace(function=record))
    with command.make_context(name, list(words), obj=Session()) as context:
        command.invoke(context)
    return {key: value for key, value in seen[0].items() if value}


def test_what_is_read_without_typer_is_what_typer_reads():
    """Of all command lines in the documentation; most are plain."""
    plain = 0
    for _, words in CALLS:
        parsed = parse(GLOBALS, words, takes_command=True)
        found = None if parsed is None else find(parsed[1])
        values = None if found is None else read(*found)
        if values is not None:
            plain += 1
            assert called_by_typer(found[0], "verb", found[1]) == values, words

    assert plain > len(CALLS) * 0.8


LINE = "7 -a -J x -Jx -s R --name=y -- - --json -aJ --limit 20 -w --user -7 --name --no-header"
WORDS = st.lists(st.sampled_from([*LINE.split(), ""]), max_size=6)


@given(WORDS)
def test_a_line_is_read_as_typer_reads_it_or_left_to_typer(words):
    verb, rest = find(["queue", *words])
    values = read(verb, rest)

    if values is not None:
        found = called_by_typer(verb, "queue", words)
        assert found == {key: value for key, value in values.items() if value}


def test_calls_are_found_wherever_a_shell_would():
    text = (
        "```sh\n# comment: iod nothing\n$ iod submit -n 4 -- ./run 'a b'  # why\n"
        "JOB=1 iod queue | grep x && iod wait 7; echo iod\n"
        "iod submit --name x \\\n  -- true > out\n```\n```toml\niod bogus\n```\n"
    )

    assert [
        ["submit", "-n", "4", "--", "./run", "a b"],
        ["queue"],
        ["wait", "7"],
        ["submit", "--name", "x", "--", "true"],
    ] == iod_calls(text)


@pytest.mark.parametrize(
    "words", [["bogus"], ["queue", "--bogus"], ["config", "bogus"], ["submit", "--cpu"]]
)
def test_a_command_that_does_not_exist_is_not_understood(words):
    with pytest.raises(ClickException):
        understood(words)
