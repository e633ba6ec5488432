"""The configuration as the API and ``iod config`` show it: every setting, and where it is from."""

from __future__ import annotations

from typing import Any

import msgspec

from iodaemon.config.describe import describe_settings, toml_value
from iodaemon.config.settings import Config


def config_document(config: Config) -> dict[str, Any]:
    """The file, and every setting with its value and where that comes from.

    What stands over the policy's tables is listed key by key, behind the settings.
    """
    settings = [
        {**msgspec.to_builtins(setting), "origin": config.origins.get(setting.path, "default")}
        for setting in describe_settings(config)
        if setting.path not in ("file", "origins", "is_system")
    ]
    for table, values in config.policy_overrides.items():
        settings += [
            {
                "table": table,
                "key": key,
                "value": toml_value(value, ""),
                "kind": "table",
                "help": f"replaces a value of the policy's [{table}]",
                "origin": config.origins.get(f"{table}.{key}", "default"),
            }
            for key, value in values.items()
        ]
    settings += [
        {
            **msgspec.to_builtins(setting),
            "table": f"tier.{name}",
            "origin": config.origins.get(f"tier.{name}", "default"),
        }
        for name, table in config.tier.items()
        for setting in describe_settings(table)
    ]
    return {"file": config.file, "settings": settings}
