"""Configuration: tables to structs, defaults, origins."""

import tomllib
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.config import (
    Settings,
    config_toml,
    decode_table,
    default_settings,
    describe_settings,
    load_config,
    read_toml,
    toml_value,
)
from iodaemon.errors import ConfigError

HOME = {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    colour: Literal["red", "blue"] = "red"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    io_bound_bytes_per_s: float | None = None
    memory_bytes: int = 0
    timeslice_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    shared: bool = False
    names: tuple[str, ...] = ()
    inner: Inner = Inner()

    def __post_init__(self):
        if self.memory_bytes == 13:
            raise ValueError("memory_bytes is 13;\nit brings bad luck")


class Needy(msgspec.Struct, frozen=True, kw_only=True):
    limit_s: float


def decode(table, type_=Sample):
    return decode_table(table, type_, where="a.toml [x]")


def test_keys_are_fields_without_unit_and_values_have_one():
    table = {"io_bound": "40 MB/s", "memory": "2G", "timeslice": "500 ms", "shared": True}

    decoded = decode({**table, "names": ["a", "b"], "inner": {"colour": "blue"}})

    expected = Sample(
        io_bound_bytes_per_s=40e6,
        memory_bytes=2 * 2**30,
        timeslice_s=0.5,
        shared=True,
        names=("a", "b"),
        inner=Inner(colour="blue"),
    )
    assert expected == decoded


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"io_bond": 1}, "a.toml [x]: unknown key 'io_bond'; did you mean 'io_bound'?"),
        ({"io_bound_bytes_per_s": 1}, "unknown key 'io_bound_bytes_per_s'; did you mean 'io_bou"),
        ({"io_bound": "fast"}, "a.toml [x]: io_bound: 'fast' is not a rate; write for example"),
        ({"timeslice": 0}, "a.toml [x]: timeslice must be above 0"),
        ({"shared": "yes"}, "a.toml [x]: shared must be true or false, not a text"),
        ({"names": ["a", 3]}, "names[1] must be a text, not a whole number"),
        ({"inner": 5}, "a.toml [x] [inner]: must be a table, is 5"),
        ({"inner": {"color": 1}}, "[inner]: unknown key 'color'; did you mean 'colour'?"),
        ({"inner": {"colour": "green"}}, "colour: 'green' is none of 'red', 'blue'"),
        ({"memory": 13}, "a.toml [x]: memory is 13; it brings bad luck"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(table, message):
    with pytest.raises(ConfigError) as e:
        decode(table)

    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match=r"^a.toml .x.: 'limit' is missing; add it$"):
        decode({}, Needy)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["io_bound", "memory", "shared", "names", "inner"]), JSON))
def test_any_table_is_decoded_or_refused_in_one_line(table):
    error = ""
    try:
        decode(table)
    except ConfigError as e:
        error = str(e)

    assert "\n" not in error


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_named(tmp_path, content):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=rf"^{path}: (no valid TOML: |line 1 is no UTF-8)") as e:
        read_toml(path)

    assert "\n" not in str(e.value)


# -- the daemon's configuration -------------------------------------------------------------


def load(path=None, environ=HOME, uid=1000, **overrides):
    return load_config(path, environ, uid, overrides)


def written(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_an_ordinary_user_needs_no_configuration():
    config = load()

    assert config.state_dir == "/home/ann/.local/state/iodaemon"
    assert str(config.socket_path) == "/run/user/1000/iodaemon/iod.sock"
    assert config.policy == "default"
    assert config.file is None


@pytest.mark.parametrize(("uid", "environ"), [(0, {}), (1000, {"HOME": "/h"})])
def test_a_simulated_node_shares_no_default_place_with_the_server(uid, environ):
    real, simulated = (
        load_config(None, environ, uid, {"backend": backend}) for backend in (None, "simulated")
    )

    assert f"{real.state_dir}-simulated" == simulated.state_dir
    assert f"{real.runtime_dir}-simulated" == simulated.runtime_dir


def test_a_simulated_node_has_the_places_that_are_named(tmp_path):
    path = written(tmp_path, 'state_dir = "/a"\nbackend = "simulated"\n')
    config = load_config(path, {"HOME": "/h"}, 1000, {"runtime_dir": "/b"})

    assert ("/a", "/b") == (config.state_dir, config.runtime_dir)


def test_without_home_the_state_dir_must_be_said():
    with pytest.raises(ConfigError, match="HOME is not set; set state_dir"):
        load(environ={})

    assert load(environ={}, state_dir="/s").state_dir == "/s"


def test_the_users_own_file_is_found(tmp_path):
    folder = tmp_path / "iodaemon"
    folder.mkdir()
    path = written(folder, 'policy = "none"')

    config = load(environ={**HOME, "XDG_CONFIG_HOME": str(tmp_path)})

    assert (config.policy, config.file) == ("none", str(path))


def test_a_file_that_was_named_must_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.toml does not exist"):
        load(tmp_path / "gone.toml")


def test_options_outrank_the_file_and_the_file_the_defaults(tmp_path):
    text = 'policy = "dynamic"\norphan_grace = "2m"\n[topology]\nsockets = ["0-1"]\n'
    text += '[regulation]\nio_bound = "20 MB/s"\n'
    path = written(tmp_path, text)

    config = load(path, policy="none", topology={"slot": "thread"}, backend=None)

    assert (config.policy, config.orphan_grace_s, config.backend) == ("none", 120.0, "linux")
    assert config.topology.socket_cpus == ((0, 1),)
    assert config.topology.slot == "thread"
    assert config.policy_overrides == {"regulation": {"io_bound": "20 MB/s"}}
    shown = {key: config.origins[key] for key in ("policy", "orphan_grace", "backend")}
    assert shown == {"policy": "option", "orphan_grace": str(path), "backend": "default"}
    assert config.origins["topology.sockets"] == str(path)
    assert config.origins["topology.slot"] == "option"
    assert config.origins["regulation.io_bound"] == str(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"state_dir": "here"}, "state_dir is 'here'; write an absolute path"),
        ({"backend": "slurm"}, "backend: 'slurm' is none of"),
        (
            {"runtime_dir": "/" + "x" * 92},
            "has 109 bytes, the kernel takes 107; set runtime_dir to",
        ),
        ({"topology": {"sockets": ["0-3", "3-5"]}}, "CPU 3 is in '0-3' and in '3-5'"),
        ({"topology": {"sockets": ["0-x"]}}, "'0-x' is no list of CPUs; write for example"),
        ({"topology": {"sockets": ["0-99999999999"]}}, "has no CPUs in"),
        ({"regulation": {"io_bound": [1]}}, "regulation.io_bound must be true or false or a whole"),
    ],
)
def test_what_cannot_work_is_refused(overrides, message):
    with pytest.raises(ConfigError) as e:
        load(**overrides)

    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_the_longest_socket_path_is_accepted():
    config = load(runtime_dir="/" + "x" * 90)

    assert len(f"{config.runtime_dir}/supervisor.sock") == 107


def test_the_file_that_config_init_writes_says_the_defaults_when_uncommented(tmp_path):
    text = config_toml(default_settings(HOME, 1000))
    lines = [
        line.removeprefix("#") if not line.startswith("# ") else "" for line in text.splitlines()
    ]

    path = written(tmp_path, "\n".join(lines))

    assert default_settings(HOME, 1000) == decode_table(read_toml(path), Settings, where="x")
    assert tomllib.loads("\n".join(lines))["orphan_grace"] == "1m"


def test_every_setting_has_a_help_and_an_origin():
    settings = describe_settings(default_settings(HOME, 1000))

    origins = load().origins
    assert all(setting.help for setting in settings)
    assert set(origins) == {setting.path for setting in settings if setting.key}


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        (40e6, "x_bytes_per_s", '"40 MB/s"'),
        (40_000_001.0, "x_bytes_per_s", "40000001.0"),
        (2**30, "x_bytes", '"1 GiB"'),
        (2**30 + 1, "x_bytes", "1073741825"),
        (None, "x_s", '"none"'),
        (True, "x", "true"),
        (("0-1", 'a"b'), "x", r'["0-1", "a\"b"]'),
    ],
)
def test_a_value_is_written_so_that_it_reads_the_same(value, field, expected):
    actual = toml_value(value, field)

    assert expected == actual


def test_what_each_user_may_have_is_configured(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[users]\nmax_running = 4\nmax_queued = "none"\nfair = true\n')

    users = load_config(file, HOME, 1000, {}).users

    assert (4, None, None, True) == (
        users.max_running,
        users.max_queued,
        users.max_slots,
        users.fair,
    )
