"""Compiles the launcher of the root side for the wheel."""

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
    """Compiles into the source tree, from where a wheel or an editable installation takes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Raises RuntimeError: there is no compiler, or it is not content."""
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if sys.byteorder != "little":
            raise RuntimeError("iodaemon runs on little-endian machines only")
        if shutil.which(compiler[0]) is None:
            raise RuntimeError(f"no C compiler ({compiler[0]}); install gcc, or set CC")
        source, program = (os.path.join(self.root, path) for path in (SOURCE, PROGRAM))
        if subprocess.run([*compiler, "-O2", "-Wall", "-o", f"{program}.new", source]).returncode:
            raise RuntimeError(f"{SOURCE} cannot be compiled")
        os.replace(f"{program}.new", program)
        build_data["artifacts"].append(PROGRAM)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
