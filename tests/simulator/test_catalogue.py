"""Experiments are found, and whatever is wrong in one is named with file and key."""

import csv
import math
import re
from pathlib import Path

import msgspec
import pytest
import tiny_study as tiny

from iodaemon.errors import ConfigError, NotFound
from iodaemon.registry import shipped
from iodaemon.simulator.catalogue import (
    experiment_search,
    find_experiments,
    load_experiment,
    parse_setting,
    prepare,
    prepare_seed_sets,
)
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.sas import Site
from iodaemon.simulator.storalloc_feedback import Way

SEED_SETS = '[seed_sets]\ntargets = ["T1a"]\n'
SHIPPED = sorted((shipped("sim") / "experiments").glob("*.toml"))
PUBLISHED = sorted((shipped("sim") / "published").glob("*.csv"))


@pytest.fixture
def write(tmp_path):
    """Write an experiment file that differs from the tiny one; its path."""

    def write(*changes, text=tiny.FILE):
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def load(path):
    return load_experiment(str(path), search=())


def test_the_quick_mode_has_its_own_seeds_and_parameters(write):
    file = load(write())

    whole, quick = prepare(file), prepare(file, is_quick=True)

    assert ((1, 2, 3), (10, 1000)) == (whole.seeds, whole.study.sizes)
    assert ((1,), (10,)) == (quick.seeds, quick.study.sizes)


def test_other_seeds_and_policies_replace_those_of_the_file(write):
    trial = prepare(load(write()), seeds=(7,), policies=("none", "./mine.toml"))

    assert ((7,), ("none", "./mine.toml")) == (trial.seeds, trial.study.policies)
    assert trial.has_other_policies
    assert ["none", "./mine.toml"] == trial.parameters["policies"]


def test_policies_are_refused_where_the_study_has_none(write, monkeypatch):
    text = tiny.FILE.replace("tiny_study:Study", "test_catalogue:Plain")

    with pytest.raises(ConfigError) as e:
        prepare(load(write(text=text)), policies=("none",))

    assert "--policy: experiment 'mine' compares no policies" in str(e.value)
    assert "'test_catalogue:Plain' has no parameter 'policies'" in str(e.value)


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """A study without policies."""

    sizes: tuple[int, ...] = (10,)

    def tasks(self, seeds):
        return []

    run = measure = figures = tasks


NoStudy = int


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("title =", "titel =", "mine.toml: unknown key 'titel'; did you mean 'title'?"),
        ('"Laplace 1812, chapter 1"', '" "', "mine.toml: source is empty"),
        ("published = 6", 'published = 6\nmeans = "own"', "(T1c): means is 'own', but there is no"),
        ("[quick]", '[seed_sets]\ntargets = ["T1c"]\n[quick]', "targets: 'T1c' has no band"),
        ("[quick]", f"{SEED_SETS}parameters = {{ size = 1 }}\n[quick]", "unknown key 'size'"),
        ("seeds = [1, 2, 3]", "seeds = [1, 2, 1]", "seeds: 1 is there 2 times"),
        ("seeds = [1]", 'seeds = ["a"]', "mine.toml [quick]: seeds: must be a list of whole"),
        ("sizes = [10, 1000]", "size = [10]", "[parameters]: unknown key 'size'; did you mean"),
        ('source = "section 2"\n', "", "mine.toml [[target]] 1: 'source' is missing"),
        (
            'source = "section 2"',
            'source = ""',
            "[[target]] 1 (T1a): source is empty; say where 0.5 is printed",
        ),
        ("high = 0.52", "high = 0.4", "[[target]] 1 (T1a): low 0.48 is above high 0.4"),
        ('"T1b"', '"T1a"', "[[target]] 2 (T1a): id 'T1a' is there twice"),
        ("published = 0.5", "publisched = 0.5", "[[target]] 1: unknown key 'publisched'; did you"),
        ('option = "sizes"', 'option = "size"', "[[choice]] 1: option: the study has no 'size'"),
        (
            '"tiny_study:Study"',
            '"compar"',
            "study: unknown study 'compar'; did you mean 'compare'?",
        ),
        ('"tiny_study:Study"', '"tinny:Study"', "study: study 'tinny:Study': no module 'tinny'"),
        ('"tiny_study:Study"', '"tiny_study:Studio"', "module tiny_study has no 'Studio'"),
        (
            '"tiny_study:Study"',
            '"test_catalogue:NoStudy"',
            "is no study; it must be a msgspec.Struct",
        ),
        ("title", "title = =", "mine.toml: no valid TOML"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(write, before, after, message):
    with pytest.raises(ConfigError) as e:
        load(write((before, after)))

    assert message in str(e.value)
    assert "mine.toml" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_folder_of_the_users_comes_before_the_shipped_ones(tmp_path):
    own = tmp_path / "iodaemon" / "experiments"
    own.mkdir(parents=True)
    (own / "first-steps.toml").write_text(tiny.FILE)

    found = find_experiments(experiment_search({"XDG_CONFIG_HOME": str(tmp_path)}))

    assert own / "first-steps.toml" == found["first-steps"]
    assert sorted(found) == list(found)


@pytest.mark.parametrize("name", ["first-stes", "./first-steps.toml", "nowhere/first-steps"])
def test_an_experiment_that_is_not_there_is_not_found(name):
    with pytest.raises(NotFound):
        load_experiment(name, search=(SHIPPED[0].parent,))


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_experiment_loads_in_both_modes(path):
    file = load(path)

    assert prepare(file).seeds
    assert prepare(file, is_quick=True).seeds
    assert Path(file.path) == path


@pytest.mark.parametrize("type_", [Cluster, Way, Site])
def test_a_number_that_means_nothing_is_refused_by_its_name(type_):
    for field in msgspec.structs.fields(type_):
        for word, bad in (("float", math.nan), ("float", -1.0), ("int", -1)):
            if word in str(field.type):
                with pytest.raises(ValueError, match=field.name):
                    type_(**{field.name: bad})


# -- targets in a table of their own ---------------------------------------------------------------

TABLE = """\
id,quantity,source,published,low,high,band_from,means,note
T1a,mean of the largest sample,section 2,0.5,0.48,0.52,ours,published,
T1b,greatest mean,"figure 2, left",below a quarter,,0.25,,,it cannot be
T1c,number of means,table 1,6,,,,,
"""


@pytest.fixture
def tabled(tmp_path):
    """The tiny experiment with its targets in ``published/mine.csv``; its path."""

    def write(text=TABLE, line='published = "mine"'):
        for folder in ("experiments", "published"):
            (tmp_path / folder).mkdir()
        (tmp_path / "published" / "mine.csv").write_text(text)
        path = tmp_path / "experiments" / "mine.toml"
        without = re.sub(r"(?s)\[\[target\]\].*(?=\[\[choice\]\])", "", tiny.FILE)
        path.write_text(f"{line}\n{without}")
        return path

    return write


def test_targets_may_be_lines_of_a_table(tabled, tmp_path):
    inline = tmp_path / "inline.toml"
    inline.write_text(tiny.FILE)

    first, *others = load(tabled()).experiment.targets
    known, *rest = load(inline).experiment.targets

    assert (known.low, known.high, known.published) == (first.low, first.high, first.published)
    assert [target.verdict(0.2) for target in rest] == [target.verdict(0.2) for target in others]
    assert ["below a quarter", 6.0] == [target.published for target in others]
    assert ["figure 2, left", "it cannot be"] == [others[0].source, others[0].note]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("source", "sauce", "mine.csv:2: unknown key 'sauce'; did you mean 'source'"),
        ("0.48,", "low,", "mine.csv:2: low must be a number"),
        (",0.52", ",0.4", "mine.csv:2 (T1a): low 0.48 is above high 0.4"),
        ("T1b", "T1a", "mine.csv:3 (T1a): id 'T1a' is there twice"),
        (",6,", ",,", "mine.csv:4: 'published' is missing"),
        (",6,,,,,", ",6,,,,,,more", "mine.csv:4: "),
        ('"figure', '""figure', "mine.csv"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_its_line(tabled, before, after, message):
    with pytest.raises(ConfigError) as e:
        load(tabled(TABLE.replace(before, after, 1)))

    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_a_table_that_is_not_there_and_two_kinds_of_targets_are_refused(tabled, write):
    with pytest.raises(ConfigError, match=r"published: there is no other\.csv in .*/published"):
        load(tabled(line='published = "other"'))
    with pytest.raises(ConfigError, match=r"published and \[\[target\]\]: give one"):
        load(write(("seeds = [1, 2, 3]", 'seeds = [1, 2, 3]\npublished = "mine"')))


@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
def test_a_shipped_band_says_where_it_comes_from_and_nothing_else_does(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert path.stem in {each.stem for each in SHIPPED}
    assert [row["id"] for row in rows if row["low"] or row["high"]] == [
        row["id"] for row in rows if row["band_from"]
    ]


def test_other_sets_of_seeds_share_none_with_each_other_or_the_file(write):
    file = load(write(("[quick]", f"{SEED_SETS}parameters = {{ sizes = [10] }}\n[quick]")))

    trials = prepare_seed_sets(file, 2)

    assert [trial.seeds for trial in trials] == [(1001, 1002, 1003), (2001, 2002, 2003)]
    assert [trial.study.sizes for trial in trials] == [(10,), (10,)]
    with pytest.raises(ConfigError, match="'mine' names no targets for it"):
        prepare_seed_sets(load(write()), 2)


def test_the_experiment_in_the_documentation_loads(write):
    page = (SHIPPED[0].parents[2] / "docs" / "simulation.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]

    file = load(write(text=text))

    assert ["none.mean_stretch"] == [target.id for target in file.experiment.targets]
    assert 10 == prepare(file, is_quick=True).study.workload.jobs


# -- parameters of the command line ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("load=1.2", {"load": 1.2}),
        ("mix.load = 1.2", {"mix": {"load": 1.2}}),
        ("records=jobs/of may.csv", {"records": "jobs/of may.csv"}),
        ('records="1"', {"records": "1"}),
        ("sizes=[10, 20]", {"sizes": [10, 20]}),
        ("run=2 h", {"run": "2 h"}),
        ("name=a=b", {"name": "a=b"}),
    ],
)
def test_a_setting_is_written_as_in_a_file_or_as_a_plain_word(text, parameters):
    assert parameters == parse_setting(text)


@pytest.mark.parametrize("text", ["load", "=1", "mix.=1", ".load=1"])
def test_a_setting_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=f"--set {text}: write KEY=VALUE"):
        parse_setting(text)


def test_settings_replace_single_parameters(write):
    file = load(write())

    trial = prepare(file, settings=("sizes=[7]", "pause=1 min"))

    assert ((7,), 60.0) == (trial.study.sizes, trial.study.pause_s)
    assert trial.has_other_policies
    assert {"sizes": [7], "pause": "1 min"} == trial.parameters
    with pytest.raises(ConfigError, match=r"with --set: unknown key 'size'; did you mean"):
        prepare(file, settings=("size=[7]",))
