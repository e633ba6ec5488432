"""What every sampler keeps to; a new file in the package is tested without a new test."""

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import iodaemon.sampler
from iodaemon.errors import NoData

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = sorted(
    module.name
    for module in pkgutil.iter_modules(iodaemon.sampler.__path__)
    if not module.name.startswith("_")
)


def load(name: str) -> ModuleType:
    return importlib.import_module(f"iodaemon.sampler.{name}")


def parse(name: str, text: bytes | str) -> object:
    return getattr(load(name), f"parse_{name}")(text)


def fixture_files(name: str) -> list[Path]:
    return sorted(FIXTURES.glob(f"{name}-*.txt"))


def every_fixture() -> list[object]:
    return [
        pytest.param(name, path, id=path.name) for name in NAMES for path in fixture_files(name)
    ]


def test_the_package_has_samplers():
    assert "diskstats" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_module_has_a_parser_and_a_reader(name):
    module = load(name)

    assert callable(getattr(module, f"parse_{name}", None))
    assert isinstance(getattr(module, "Sampler", None), type)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("the file", r"/proc/|/sys/|cgroup"),
        ("a kernel version that has it", r"Linux \d+\.\d+"),
        ("its documentation", r"Documentation/|man \w+\(\d\)"),
    ],
)
def test_the_docstring_of_a_sampler_names(name, what, pattern):
    found = re.search(pattern, load(name).__doc__ or "")

    assert found is not None, f"{name}: docstring does not name {what}"


@pytest.mark.parametrize("name", NAMES)
def test_what_a_sampler_offers_has_docstrings(name):
    module = load(name)
    public = [getattr(module, f"parse_{name}"), module.Sampler, module.Sampler.read]

    assert [item.__qualname__ for item in public if not item.__doc__] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_has_a_text_of_a_real_machine_with_the_kernel_in_its_name(name):
    real = [path.name for path in fixture_files(name) if re.search(r"-\d+\.\d+", path.name)]

    assert real != []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", [b"", "", b"\n", b"\n\n\n", b"\x00\xff\n", b"no such file\n"])
def test_a_text_without_data_is_no_data(name, text):
    with pytest.raises(NoData):
        parse(name, text)


@pytest.mark.parametrize(("name", "path"), every_fixture())
def test_every_fixture_parses_the_same_as_bytes_and_as_text(name, path):
    text = path.read_bytes()

    assert parse(name, text) == parse(name, text.decode())


@pytest.mark.parametrize(("name", "path"), every_fixture())
def test_a_text_cut_at_any_byte_parses_or_is_no_data(name, path):
    text = path.read_bytes()
    for length in range(len(text)):
        try:
            parse(name, text[:length])
        except NoData:
            continue


@pytest.mark.parametrize(("name", "path"), every_fixture())
def test_words_in_the_place_of_numbers_parse_or_are_no_data(name, path):
    text = re.sub(rb"\d+", b"x", path.read_bytes())
    try:
        parse(name, text)
    except NoData:
        return


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_root_is_no_data(name, tmp_path):
    sampler = load(name).Sampler(tmp_path)

    with pytest.raises(NoData):
        sampler.read()


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_reads_this_machine_again_and_again_or_has_no_data(name):
    sampler = load(name).Sampler(Path("/"))
    try:
        first = sampler.read()
        again = sampler.read()
    except NoData:
        return
    finally:
        sampler.close()

    assert type(first) is type(again)


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_sampler_may_be_closed_again(name, tmp_path):
    sampler = load(name).Sampler(tmp_path)
    sampler.close()

    sampler.close()
