"""Points at which a test may end or stop a process, outside of the root side as well."""

from iodaemon.supervisor.failpoint import VARIABLE, reach

__all__ = ["VARIABLE", "reach"]
