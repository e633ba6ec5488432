"""Reads /proc and cgroups: what jobs, disks and the machine have used.

Two sides and a line between them (``rows``). ``client`` is the daemon's: it has the process started
and asks for a sample; begin reading there. ``sweep`` is the process: a job is read by ``Job``, over
``job_io``, ``open_files`` and ``node_counters``, and ``watch`` ends it where a read hangs. It
imports the standard library only. ``proc_files`` and ``cgroup_files`` have one parser for each
kernel file; others use them too.

A parser is pure; a file that does not exist or is cut short is ``NoData``, an ordinary answer.
Counters are returned as the kernel counts them, in base units. ``root`` is ``/``, or a directory
that looks like it.
"""
