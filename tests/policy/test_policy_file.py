"""Policy files and the registry of rules."""

import tomllib

import msgspec
import pytest

from iodaemon.config import (
    load_policy,
    policy_search,
)
from iodaemon.core.rule import Rules
from iodaemon.errors import ConfigError
from iodaemon.policy.admission import easy, equilibrio
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import adaptive, dynamic, none
from iodaemon.registry import shipped

SHIPPED = [shipped("policies")]


def load(name, search=SHIPPED, **overrides):
    return load_policy(str(name), overrides=overrides, search=search)


def written(folder, text, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


MINIMAL = '[admission]\nrule = "fcfs"\n[regulation]\nrule = "dynamic"\n'
JUDGED = MINIMAL.replace("dynamic", "adaptive")


# -- files ------------------------------------------------------------------------------------


def test_the_default_acts_on_evidence_without_a_cap():
    policy = load("default")

    expected = Rules(
        name="default",
        admission=easy.Rule(),
        placement=least_io.Rule(),
        regulation=adaptive.Rule(timeslice_s=1.0, io_bound_bytes_per_s=None),
        max_suspend_s=600.0,
    )
    assert expected == policy.rules


def test_the_published_policy_has_the_published_numbers():
    policy = load("dynamic")

    rule = policy.rules.regulation
    assert (rule.timeslice_s, rule.io_bound_bytes_per_s) == (1.0, 40e6)
    assert policy.source == "Lv et al., JCST 2014, section 3"


def test_equilibrio_is_as_the_authors_recommend_it_but_passes_nobody_for_ever():
    published = equilibrio.Rule(alpha=0.5, bound="max", intensity_delta="system")

    rules = [
        load("equilibrio", admission=overrides).rules.admission
        for overrides in ({}, {"longest_wait": "none"})
    ]

    assert [msgspec.structs.replace(published, longest_wait_s=6 * 3600.0), published] == rules
    assert equilibrio.Rule() == published


@pytest.mark.parametrize("name", ["equilibrio", "io-budget", "storage-aware"])
def test_policies_that_order_the_queue_by_io_regulate_as_the_default_does(name):
    assert load("default").rules.regulation == load(name).rules.regulation


@pytest.mark.parametrize(("text", "expected"), [('"auto"', "auto"), ("0.25", 0.25), ("1", 1.0)])
def test_alpha_is_a_number_or_finds_itself(text, expected):
    policy = load("equilibrio", admission={"alpha": tomllib.loads(f"x = {text}")["x"]})

    assert expected == policy.rules.admission.alpha


@pytest.mark.parametrize(("text", "expected"), [('"5m"', 300.0), ('"none"', None), ("90", 90.0)])
def test_max_suspend_is_the_policys_and_placement_may_be_left_out(tmp_path, text, expected):
    rules = load(written(tmp_path, f"max_suspend = {text}\n{MINIMAL}")).rules

    assert (expected, least_io.Rule()) == (rules.max_suspend_s, rules.placement)


@pytest.mark.parametrize(
    ("over", "rule"),
    [
        ({"io_bound": "80 MB/s"}, dynamic.Rule(io_bound_bytes_per_s=80e6)),
        ({"io_bound": "none"}, dynamic.Rule()),
        ({"rule": "none"}, none.Rule()),  # it drops the parameters of the other one
    ],
)
def test_an_override_replaces_single_values(over, rule):
    rules = load("dynamic", regulation=over, max_suspend="1m").rules

    assert (rule, 60.0) == (rules.regulation, rules.max_suspend_s)


def test_a_rule_that_is_a_parameter_of_another_is_still_known_by_its_name():
    asked = {"rule": "io_budget", "bandwidth": "40 MB/s", "depth": 9}

    [given, alone, burst] = [
        load("default", admission=each).rules.admission
        for each in (asked, {"rule": "io_budget"}, {"rule": "io_budget", "demand": "burst"})
    ]

    assert given == easy.Rule(bandwidth_bytes_per_s=40e6, demand="mean", depth=9)
    assert alone == load("io-budget").rules.admission == easy.Rule(demand="mean")
    assert burst == easy.Rule(demand="burst")


def test_the_users_policy_outranks_the_shipped_one(tmp_path):
    written(tmp_path, MINIMAL, name="dynamic")

    policy = load("dynamic", search=[tmp_path, *SHIPPED])

    assert policy.path == tmp_path / "dynamic.toml"


def test_policies_are_looked_up_in_the_users_the_systems_and_the_shipped_folder():
    search = policy_search({"XDG_CONFIG_HOME": "/c", "HOME": "/h"})

    folders = [str(folder) for folder in search]
    assert folders == ["/c/iodaemon/policies", "/etc/iodaemon/policies", str(SHIPPED[0])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{path}: 'admission' is missing; add it"),
        ("sauce = 1", "{path}: unknown key 'sauce'; did you mean 'source'?"),
        ("[admission]\n[regulation]", '{path} [admission]: needs rule = "NAME", has None'),
        (MINIMAL.replace("fcfs", "fcsf"), "{path} [admission]: unknown admission rule 'fcsf'; did"),
        (MINIMAL + 'io_bond = "1"', "{path} [regulation]: unknown key 'io_bond'; did you mean"),
        (MINIMAL + 'io_bound = "1 Mb/s"', "{path} [regulation]: io_bound: '1 Mb/s' is not a rate"),
        (MINIMAL + "io_bound = 0", "{path} [regulation]: io_bound is 0; it must be above 0"),
        ("max_suspend = 0\n" + MINIMAL, "{path}: max_suspend must be above 0; 'none' lifts"),
        (JUDGED + "high_wait = 1e400", "{path} [regulation]: high_wait is inf; write a finite"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_in_one_line(tmp_path, text, message):
    path = written(tmp_path, text)

    with pytest.raises(ConfigError) as e:
        load(path)

    assert str(e.value).startswith(message.format(path=path))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("source", ["/etc/iodaemon/config.toml", None])
def test_an_error_in_an_override_names_the_file_it_stands_in(source):
    known = {} if source is None else {"overrides_from": source}
    over = {"regulation": {"io_bond": "1 MB/s"}}
    with pytest.raises(ConfigError) as e:
        load_policy("none", overrides=over, search=SHIPPED, **known)

    said = f"{source or 'override'}, over policy 'none' [regulation]: unknown key 'io_bond'; "
    assert str(e.value).startswith(said)


def test_a_setting_that_only_other_rules_have_is_accepted_and_said():
    """The configuration's io_bound must not keep the daemon from running without regulation."""
    policy = load("none", regulation={"io_bound": "1 MB/s", "timeslice": "2 s"})

    assert none.Rule(timeslice_s=2.0) == policy.rules.regulation
    [note] = policy.notes
    assert note == (
        "override, over policy 'none' [regulation]: io_bound has no effect, rule 'none' has no "
        "such setting; take it out, or choose a policy whose rule has it"
    )
