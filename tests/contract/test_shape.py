"""The house rules that a machine can check: names, docstrings, imports, data, README."""

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

from iodaemon.cli.failure import ClickException
from iodaemon.cli.program import app
from iodaemon.cli.session import Session
from iodaemon.config import load_policy

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "iodaemon").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

KEEPER_MODULES = (
    *("keeper", "keeper_main", "pool", "shim", "attempt", "launch", "freezer", "process"),
    *("protocol", "means", "scope", "service", "account", "fence"),
    *("adopted", "aside", "beneath", "quota", "scratch", "scratch_desk", "scratch_tree"),
    *("scratch_work", "steps", "stage", "stage_file", "manifest"),
    *("stage_walk", "stage_batch", "stage_out", "stage_place", "stage_progress"),
    "stage_clock",
    *("salvage", "lingering", "store"),
    *("traced", "trouble"),
)
HEAVY = ("aiohttp", "msgspec", "psutil", "pyudev", "sqlite3", "asyncio")
"""What the command line must not wait for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def parse(path):
    return ast.parse(path.read_text())


def defined(tree, path=""):
    """Every class and function that is not within a function, with its dotted name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | Function):
            yield f"{path}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from defined(node, f"{path}{node.name}.")


def is_public(name):
    return not any(part.startswith("_") for part in name.split("."))


# -- names -----------------------------------------------------------------------------------------


def test_there_is_something_to_look_at():
    assert len(FILES) > 50


def test_no_two_files_of_tests_have_one_name():
    """They are no packages: pytest could not import both."""
    names = [path.name for path in TESTS if path.name != "conftest.py"]

    assert [] == sorted(name for name in set(names) if names.count(name) > 1)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_module_is_named_after_nothing(path):
    assert path.stem not in FORBIDDEN_NAMES
    assert path.parent.name not in FORBIDDEN_NAMES


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_everything_public_has_a_docstring_that_begins_with_a_sentence(path):
    tree = parse(path)
    documented = [("module", tree), *((n, d) for n, d in defined(tree) if is_public(n))]
    bad = [
        name
        for name, node in documented
        if not re.match(r"\S.*[.:]$", (ast.get_docstring(node) or "").partition("\n")[0])
    ]

    assert [] == bad


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_code_is_commented_out_or_left_for_later(path):
    marks = re.findall(r"#.*\b(?:TODO|FIXME|XXX|HACK)\b.*", path.read_text())

    assert [] == marks


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nothing_is_inherited_but_protocols_structs_and_errors(path):
    """Composition by calls; what a library asks for (a thread, a group of commands) excepted."""
    inherited = [
        (name, ast.unparse(base))
        for name, node in defined(parse(path))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).rpartition(".")[2] in plain_classes()
    ]

    assert [] == inherited


@functools.cache
def plain_classes():
    """Our classes that are no structs, errors, protocols, enums or typed dictionaries."""
    return frozenset(
        name.rpartition(".")[2]
        for path in FILES
        for name, node in defined(parse(path))
        if isinstance(node, ast.ClassDef) and not node.bases and not node.keywords
    )


def test_every_test_is_a_sentence():
    names = [
        f"{path.name}:{node.name}"
        for path in TESTS
        for node in ast.walk(parse(path))
        if isinstance(node, Function)
        and node.name.startswith("test_")
        and len(node.name.split("_")) < 3
    ]

    assert [] == names


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


@pytest.mark.parametrize("name", KEEPER_MODULES)
def test_the_keepers_modules_need_nothing_but_the_standard_library(name):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        f"import iodaemon.backend.linux.{name}; "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] == 'iodaemon'))"
    )

    ended = python("-I", "-S", "-c", code)

    assert (0, "") == (ended.returncode, ended.stderr)
    ours = ast.literal_eval(ended.stdout)
    beyond = [m for m in ours if re.match(r"iodaemon\.(core|sampler|policy|daemon|api)", m)]
    assert [] == beyond


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


@pytest.mark.parametrize(
    "name",
    [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in FILES
        if path.is_relative_to(ROOT / "iodaemon") and path.name != "__main__.py"
    ],
)
def test_a_module_can_be_imported(name):
    assert importlib.import_module(name.removesuffix(".__init__"))


# -- data ------------------------------------------------------------------------------------------

POLICIES = sorted((ROOT / "policies").glob("*.toml"))


@pytest.mark.parametrize("path", POLICIES, ids=[path.stem for path in POLICIES])
def test_a_shipped_policy_loads_and_says_what_it_is_for(path):
    policy = load_policy(str(path), overrides={}, search=())

    assert path.stem == policy.rules.name
    assert path.read_text().startswith("# ")


# -- README ----------------------------------------------------------------------------------------


def shell_lines(text):
    """Lines of the code blocks that are for a shell; continued ones joined."""
    lines, language = [], None
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
        elif language in ("", "sh", "bash", "shell", "console"):
            lines.append(line.strip().removeprefix("$ "))
    return [line for line in lines if re.search(r"\biod\b", line)]


def iod_calls(text):
    """The words after ``iod`` of every call in these blocks, also behind pipes and &&."""
    calls = []
    for line in shell_lines(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>()"):
                start = next((i for i, each in enumerate(words) if "=" not in each), len(words))
                if words[start : start + 1] == ["iod"]:
                    calls.append(words[start + 1 :])
                words = []
            else:
                words.append(word)
    return calls


def understood(words):
    """Go down the verbs as the program does; all words are parsed, nothing is run."""
    command, name, rest, context = typer.main.get_group(app), "iod", list(words), None
    while True:
        context = command.make_context(name, rest, parent=context, obj=Session())
        if not hasattr(command, "resolve_command"):
            return
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, rest)


CALLS = [
    (page.name, words)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for words in iod_calls(page.read_text())
]


@pytest.mark.parametrize(
    ("page", "words"), CALLS, ids=[f"{page}: {shlex.join(words)[:60]}" for page, words in CALLS]
)
def test_a_command_in_the_documentation_is_understood(page, words):
    with contextlib.suppress(typer.Exit):  # --help and --version end there
        understood(words)


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
