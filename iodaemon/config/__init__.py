"""What the files and options say: the configuration, and the policy that it names."""

from iodaemon.config.describe import Setting, config_toml, describe_settings, toml_value
from iodaemon.config.policy import (
    PolicyFile,
    check_offers,
    find_policies,
    load_policy,
    policy_search,
    rule_tables,
)
from iodaemon.config.settings import (
    Config,
    Settings,
    Topology,
    default_file,
    default_settings,
    load_config,
)
from iodaemon.config.table import decode_table, key_of, read_toml

__all__ = [
    "Config",
    "PolicyFile",
    "Setting",
    "Settings",
    "Topology",
    "check_offers",
    "config_toml",
    "decode_table",
    "default_file",
    "default_settings",
    "describe_settings",
    "find_policies",
    "key_of",
    "load_config",
    "load_policy",
    "policy_search",
    "read_toml",
    "rule_tables",
    "toml_value",
]
