"""Reads /proc and cgroups: what jobs, disks and the machine have used.

Two sides and a line between them. ``client`` is the daemon's: it has the process started and asks
for a sample; begin reading there. ``sweep`` is the process: a job is read by ``Job``, over
``job_io`` (which also ends the process where a read hangs), ``open_files`` and ``node_counters``.
It imports the standard library only. ``proc_files`` and ``cgroup_files`` have one parser for each
kernel file; others use them too. ``root`` is ``/``, or a directory that looks like it.

Both sides say one JSON object a line. The daemon says first ``devices`` (names of disks) and
``cpus`` (of each partition, by its number), then one for each sweep:

====== =============================================================================
add    jobs that are read from now on: ``[job, attempt, holder, silent]``; with
       ``holder``, a pid, it has no cgroup; ``silent``: a process of it that did not
       answer, which is not read until it does; null: none
remove jobs that are read no more
read   jobs that are read whether they have run or not: what was waited for of them is
       another total than before
====== =============================================================================

The sampler answers with what it has found; null is what is not known:

====== =============================================================================
jobs   of each job of which anything has changed: ``[job, process that does not answer,
       [the fields of Moved], CPU time, user time, resident bytes, stall times of I/O
       and memory, room of the output]``
moved  ``[job, "major:minor", bytes read, bytes written]`` where that has changed
disks  by name, the fields of its line in /proc/diskstats
node   ``core.sample.NodeCounters``
files  pairs of a job and the mounts of its open files (lines of mountinfo, as latin-1),
       where these have changed
====== =============================================================================

or with ``silent``, a job and its process: that one does not answer, so the sampler ends.
"""
