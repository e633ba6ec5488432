"""Compiles the launcher of the root side for the wheel, where there is a C compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "iodaemon/supervisor/launcher.c"
PROGRAM = "iodaemon/supervisor/iod-launcher"


class CompileLauncher(BuildHookInterface):  # type: ignore[type-arg]
    """Without a compiler the wheel has the launcher in Python alone, which is slower."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile into the source tree, from where a wheel or an editable installation takes it."""
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if sys.byteorder != "little" or shutil.which(compiler[0]) is None:
            return
        source, program = (os.path.join(self.root, path) for path in (SOURCE, PROGRAM))
        built = subprocess.run([*compiler, "-O2", "-Wall", "-o", f"{program}.new", source])
        if built.returncode:
            self.app.display_warning(f"{SOURCE} cannot be compiled; the one in Python is used")
            return
        os.replace(f"{program}.new", program)
        build_data["artifacts"].append(PROGRAM)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
