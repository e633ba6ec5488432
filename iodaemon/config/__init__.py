"""What the files and options say: the configuration, and the policy that it names."""

from iodaemon.config.change import Change, in_force, policy_changes, setting_changes
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
    config_document,
    default_file,
    default_settings,
    load_config,
)
from iodaemon.config.table import decode_table, read_toml

__all__ = [
    "Change",
    "Config",
    "PolicyFile",
    "Setting",
    "Settings",
    "Topology",
    "check_offers",
    "config_document",
    "config_toml",
    "decode_table",
    "default_file",
    "default_settings",
    "describe_settings",
    "find_policies",
    "in_force",
    "load_config",
    "load_policy",
    "policy_changes",
    "policy_search",
    "read_toml",
    "rule_tables",
    "setting_changes",
    "toml_value",
]
