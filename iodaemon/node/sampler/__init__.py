"""Reads /proc and cgroups: what jobs, disks and the machine have used.

Begin reading with ``sweep`` (one reading of everything, in a thread that is replaced where a read
hangs). ``job_io`` sums the processes of one job, ``open_files`` finds the disks that its files lie
on, ``node_counters`` reads the machine and the memory that jobs share. ``proc_files`` and
``cgroup_files`` have one parser for each kernel file, over ``kernel_file``.

A parser is pure; a file that does not exist or is cut short is ``NoData``, an ordinary answer.
Counters are returned as the kernel counts them, in base units. ``root`` is ``/``, or a directory
that looks like it.
"""
