"""Policy files and the registry of rules."""

import sys
import tomllib

import msgspec
import pytest

import iodaemon
from iodaemon.config import (
    check_offers,
    find_policies,
    load_policy,
    policy_search,
    rule_tables,
)
from iodaemon.core.decision import Resume, Start, Suspend
from iodaemon.core.rule import Rules
from iodaemon.errors import ConfigError
from iodaemon.policy.admission import easy, equilibrio
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import adaptive, dynamic, none
from iodaemon.registry import find_rule, rule_name, rule_names, shipped

SHIPPED = [shipped("policies")]
KINDS = ["admission", "placement", "regulation"]


def load(name, search=SHIPPED, **overrides):
    return load_policy(str(name), overrides=overrides, search=search)


def written(folder, text, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


MINIMAL = '[admission]\nrule = "fcfs"\n[regulation]\nrule = "dynamic"\n'
JUDGED = MINIMAL.replace("dynamic", "adaptive")
FORMER = MINIMAL.replace("dynamic", "bounded")
PACKED = '[regulation]\nrule = "none"\n[admission]\nrule = "pack"\n'


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


@pytest.mark.parametrize("name", sorted(find_policies(SHIPPED)))
def test_every_shipped_policy_loads(name):
    policy = load(name)

    assert policy.name == name


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


@pytest.mark.parametrize("alpha", [-0.1, 1.5, "much", None])
def test_an_alpha_that_is_none_is_refused_in_one_line(alpha):
    with pytest.raises(ConfigError, match="alpha") as caught:
        load("equilibrio", admission={"alpha": alpha})

    assert "\n" not in str(caught.value)


def test_placement_may_be_left_out(tmp_path):
    policy = load(written(tmp_path, MINIMAL))

    assert policy.rules.placement == least_io.Rule()


@pytest.mark.parametrize(("text", "expected"), [('"5m"', 300.0), ('"none"', None), ("90", 90.0)])
def test_max_suspend_is_the_policys(tmp_path, text, expected):
    policy = load(written(tmp_path, f"max_suspend = {text}\n{MINIMAL}"))

    assert expected == policy.rules.max_suspend_s


def test_an_override_replaces_single_values():
    policy = load("dynamic", regulation={"io_bound": "80 MB/s"}, max_suspend="1m")

    assert policy.rules.regulation == dynamic.Rule(io_bound_bytes_per_s=80e6)
    assert policy.rules.max_suspend_s == 60.0


def test_an_override_can_lift_the_bound():
    policy = load("dynamic", regulation={"io_bound": "none"})

    assert policy.rules.regulation.io_bound_bytes_per_s is None


def test_another_rule_drops_the_parameters_of_the_old_one():
    policy = load("dynamic", regulation={"rule": "none"})

    assert policy.rules.regulation == none.Rule()


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
        ("admission = 1\nregulation = 2", "{path}: admission: expected object, got int, is 1"),
        ("[admission]\n[regulation]", '{path} [admission]: needs rule = "NAME", has None'),
        (MINIMAL.replace("fcfs", "fcsf"), "{path} [admission]: unknown admission rule 'fcsf'; did"),
        (MINIMAL + 'io_bond = "1"', "{path} [regulation]: unknown key 'io_bond'; did you mean"),
        (MINIMAL + 'io_bound = "1 Mb/s"', "{path} [regulation]: io_bound: '1 Mb/s' is not a rate"),
        (MINIMAL + "io_bound = 0", "{path} [regulation]: io_bound is 0; it must be above 0"),
        (MINIMAL + "timeslice = 0", "{path} [regulation]: timeslice is 0; it must be above 0"),
        ("max_suspend = 0\n" + MINIMAL, "{path}: max_suspend must be above 0; 'none' lifts"),
        ("source = 1\n" + MINIMAL, "{path}: source: expected str, got int, is 1"),
        (JUDGED + "high_wait = 1e400", "{path} [regulation]: high_wait is inf; write a finite"),
        (
            PACKED + "stretch_bound = inf",
            "{path} [admission]: stretch_bound is inf; write a finite",
        ),
        (JUDGED + "stall_share = nan", "{path} [regulation]: stall_share is nan; write a part"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_in_one_line(tmp_path, text, message):
    path = written(tmp_path, text)

    with pytest.raises(ConfigError) as e:
        load(path)

    assert str(e.value).startswith(message.format(path=path))
    assert "\n" not in str(e.value)


def test_an_error_in_an_override_names_the_file_it_stands_in():
    with pytest.raises(ConfigError) as e:
        load_policy(
            "none",
            overrides={"regulation": {"io_bond": "1 MB/s"}},
            search=SHIPPED,
            overrides_from="/etc/iodaemon/config.toml",
        )

    assert str(e.value).startswith(
        "/etc/iodaemon/config.toml, over policy 'none' [regulation]: unknown key 'io_bond'; "
    )


def test_an_error_in_an_override_without_a_file_does_not_blame_the_policys():
    with pytest.raises(ConfigError, match=r"^override, over policy 'none' \[regulation\]: unkn"):
        load("none", regulation={"io_bond": "1 MB/s"})


def test_a_setting_that_only_other_rules_have_is_accepted_and_said():
    """The configuration's io_bound must not keep the daemon from running without regulation."""
    policy = load("none", regulation={"io_bound": "1 MB/s", "timeslice": "2 s"})

    assert none.Rule(timeslice_s=2.0) == policy.rules.regulation
    [note] = policy.notes
    assert note == (
        "override, over policy 'none' [regulation]: io_bound has no effect, rule 'none' has no "
        "such setting; take it out, or choose a policy whose rule has it"
    )


def test_with_a_rule_of_its_own_an_override_must_fit_it():
    with pytest.raises(ConfigError, match="unknown key 'io_bound'"):
        load("default", regulation={"rule": "none", "io_bound": "1 MB/s"})


# -- a deleted rule ----------------------------------------------------------------------------


def test_a_file_that_names_a_deleted_rule_gets_its_successor_and_says_so(tmp_path):
    path = written(tmp_path, f'{FORMER}timeslice = "2 s"\nturn = "4 s"\nhigh_wait = 4\nsustain = 3')

    policy = load(path)

    assert adaptive.Rule(timeslice_s=2.0, high_wait=4.0) == policy.rules.regulation
    [note] = policy.notes
    assert note == (
        f"{path} [regulation]: rule 'bounded' was deleted, 'adaptive' takes its place; "
        "without effect: turn, sustain"
    )


def test_every_parameter_of_the_deleted_rule_is_accepted(tmp_path):
    text = """timeslice = "1 s"\nio_bound = "9 MB/s"\nlow_share = 0.7\nhigh_wait = 3.0
least_queue = 2.0\nsustain = 2\ndwell = "5 s"\nturn = "10 s"\nretry = "15 s"\nwriteback = "35 s"
"""

    policy = load(written(tmp_path, FORMER + text))

    assert adaptive.Rule(io_bound_bytes_per_s=9e6) == policy.rules.regulation


def test_a_configuration_that_names_a_deleted_rule_gets_its_successor_and_says_so():
    policy = load("none", regulation={"rule": "bounded", "io_bound": "9 MB/s", "turn": "4 s"})

    assert adaptive.Rule(io_bound_bytes_per_s=9e6) == policy.rules.regulation
    [note] = policy.notes
    assert note == (
        "override, over policy 'none' [regulation]: rule 'bounded' was deleted, 'adaptive' takes "
        "its place; without effect: turn"
    )


def test_a_setting_that_only_a_deleted_rule_had_is_accepted_and_said():
    policy = load("default", regulation={"turn": "4 s"})

    assert adaptive.Rule() == policy.rules.regulation
    [note] = policy.notes
    assert "[regulation]: turn has no effect, rule 'adaptive' has no such setting" in note


def test_what_the_deleted_rule_did_not_have_either_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'trun'"):
        load(written(tmp_path, f'{FORMER}trun = "4 s"'))


# -- files of a newer version ------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0", "0.1", "0.1.0"])
def test_a_file_for_this_version_or_an_older_one_is_loaded(tmp_path, version):
    policy = load(written(tmp_path, f'requires = "{version}"\n{MINIMAL}'))

    assert dynamic.Rule() == policy.rules.regulation


@pytest.mark.parametrize("more", ["", "[scheduling]", '[regulation]\nrule = "oracle"'])
def test_a_file_that_requires_a_newer_version_is_refused_by_that_whatever_is_in_it(tmp_path, more):
    path = written(tmp_path, f'requires = "7.2"\n[admission]\nrule = "fcfs"\n{more}\n')

    with pytest.raises(ConfigError) as e:
        load(path)

    assert str(e.value) == (
        f"{path}: requires iodaemon 7.2, this is {iodaemon.__version__}; install the newer one, or "
        "choose another policy"
    )


@pytest.mark.parametrize("value", ['"newest"', "1", '""', '"1.x"'])
def test_a_requirement_that_is_no_version_is_refused(tmp_path, value):
    with pytest.raises(ConfigError, match=r'requires is .*; write a version such as "0.1"'):
        load(written(tmp_path, f"requires = {value}\n{MINIMAL}"))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (MINIMAL + 'horizon = "9 s"', "{path} [regulation]", "unknown key 'horizon'"),
        (MINIMAL + "[scheduling]", "{path}", "unknown key 'scheduling'"),
        (MINIMAL.replace("dynamic", "oracle"), "{path} [regulation]", "unknown regulation rule"),
    ],
)
def test_what_is_not_known_may_be_of_a_newer_version(tmp_path, text, where, what):
    path = written(tmp_path, text)

    with pytest.raises(ConfigError) as e:
        load(path)

    assert str(e.value).startswith(f"{where.format(path=path)}: {what}")
    assert str(e.value).endswith(f"; or it needs a newer iodaemon than {iodaemon.__version__}")


def test_what_is_not_known_to_the_version_that_the_file_asks_for_is_misspelt(tmp_path):
    with pytest.raises(ConfigError) as e:
        load(written(tmp_path, f'requires = "0.1"\n{MINIMAL}horizon = "9 s"'))

    assert "newer" not in str(e.value)


def test_an_unknown_policy_is_told_the_nearest():
    with pytest.raises(ConfigError, match=r"^no policy 'dynmaic' in .*; did you mean 'dynamic'\?$"):
        load("dynmaic")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone.toml does not exist"):
        load(tmp_path / "gone.toml")


def test_a_backend_that_cannot_suspend_is_refused_by_name():
    with pytest.raises(ConfigError) as e:
        check_offers(load("dynamic").rules, {Start, Suspend}, "slurm")

    assert str(e.value) == (
        "policy 'dynamic': regulation rule 'dynamic' needs Resume, which backend 'slurm' does not "
        "offer; choose another, for example 'none'"
    )


def test_a_backend_that_offers_what_is_needed_is_accepted():
    check_offers(load("dynamic").rules, {Start, Suspend, Resume}, "linux")
    check_offers(load("none").rules, set(), "slurm")


def test_rules_can_be_shown_with_their_parameters():
    tables = rule_tables(load("dynamic").rules)

    assert tables["placement"] == {"rule": "least_io"}
    assert tables["regulation"] == {
        "rule": "dynamic",
        "timeslice_s": 1.0,
        "io_bound_bytes_per_s": 40e6,
        "per_socket_share": False,
        "resume_singly": False,
    }
    assert msgspec.json.encode(tables)


# -- registry ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_found_is_a_frozen_struct_whose_name_leads_back_to_it(kind):
    for name in rule_names(kind):
        type_ = find_rule(kind, name)

        assert type_.__struct_config__.frozen
        assert name == rule_name(type_())


def test_the_shipped_rules_are_listed():
    assert {"fcfs"} <= set(rule_names("admission"))
    assert {"least_io"} <= set(rule_names("placement"))
    assert {"dynamic", "none"} <= set(rule_names("regulation"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder on the module path whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_rule_of_ones_own_is_loaded_by_its_dotted_name(own):
    (own / "my_rules.py").write_text(
        "from iodaemon.policy.admission.fcfs import Rule as Fcfs\n"
        "class Mine(Fcfs, frozen=True, kw_only=True):\n    patience_s: float = 1.0\n"
    )
    text = MINIMAL.replace('"fcfs"', '"my_rules:Mine"\npatience = "2m"')

    policy = load(written(own, text))

    assert policy.rules.admission.patience_s == 120.0
    assert rule_name(policy.rules.admission) == "my_rules:Mine"


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("", "no_such_module:Rule", "no module 'no_such_module'; put its folder on PYTHONPATH"),
        ("", "own_a:Rule", "module own_a has no 'Rule'"),
        ("import not_there_at_all", "own_b:Rule", "ModuleNotFoundError: No module named 'not_th"),
        ("1 / 0", "own_c:Rule", "fails to import: ZeroDivisionError: division by zero"),
        ("x = (", "own_d:Rule", "fails to import: SyntaxError: "),
        ("Rule = 5", "own_e:Rule", "must be a msgspec.Struct with a method decide"),
        ("", ":Rule", "fails to import: ValueError: "),
    ],
)
def test_a_rule_of_ones_own_that_fails_is_named_in_one_line(own, source, name, message):
    module = name.partition(":")[0]
    if module.startswith("own_"):
        (own / f"{module}.py").write_text(source)

    with pytest.raises(ConfigError) as e:
        find_rule("admission", name)

    assert message in str(e.value)
    assert "\n" not in str(e.value)


OWN = """import msgspec
class Rule(msgspec.Struct, frozen=True):
    timeslice_s: float = 1.0
    def __post_init__(self):
        {body}
    def decide(self, view, memory): ...
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{}['x']", "{path}: a rule fails at {module}:5: KeyError: 'x'"),
        ("1 / 0", "{path}: a rule fails at {module}:5: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "{path}: a rule fails at {module}:5: SystemExit: 3"),
    ],
)
def test_a_rule_that_fails_when_it_is_made_is_named_with_its_line(own, body, told):
    module = own / "own_g.py"
    module.write_text(OWN.replace("{body}", body))
    path = written(own, MINIMAL.replace('"dynamic"', '"own_g:Rule"'))

    with pytest.raises(ConfigError) as e:
        load(path)

    assert told.format(path=path, module=module) == str(e.value)


@pytest.mark.parametrize("slice_s", ["0.0", "-1.0", "float('inf')", "float('nan')", "'1'", "None"])
def test_a_timeslice_of_ones_own_rule_is_a_time(own, slice_s):
    source = OWN.replace("float = 1.0", f"object = {slice_s}").replace("{body}", "pass")
    (own / "own_h.py").write_text(source)

    with pytest.raises(ConfigError, match="timeslice"):
        load(written(own, MINIMAL.replace('"dynamic"', '"own_h:Rule"')))


def test_a_regulation_needs_a_timeslice(own):
    (own / "own_f.py").write_text(
        "import msgspec\nclass Rule(msgspec.Struct, frozen=True):\n    def decide(self): ...\n"
    )

    with pytest.raises(ConfigError, match="'own_f:Rule' must have a field timeslice_s"):
        find_rule("regulation", "own_f:Rule")


def test_missing_shipped_data_is_a_broken_installation():
    with pytest.raises(ConfigError, match=r"shipped folder 'nonsense' is missing .*; reinstall"):
        shipped("nonsense")
