"""Reads /proc and cgroups: what jobs, disks and the machine have used.

Two sides and a line between them. ``client`` is the daemon's: it has the process started and asks
for a sample; begin reading there. ``sweep`` is the process: a job is read by ``Job``, over
``job_io`` (which also ends the process where a read hangs), ``open_files`` and ``node_counters``.
It imports the standard library only. ``proc_files`` has one parser for each kernel file; others
use it too.

Both sides say one JSON object a line. The daemon says first ``devices`` (``major:minor`` of leaf
disks, by name) and ``cpus`` (of each partition, by its number), then one for each sweep:

====== =============================================================================
jobs   those that are read from now on, and no others: ``[job, attempt, holder, silent]``;
       with ``holder``, a pid, it has no cgroup; ``silent``: a process of it that did not
       answer, which is not read until it does; null: none. Missing: the same as before
read   jobs that are read whether they have run or not: of which nothing is known yet, or
       what was waited for of them is another total than before
====== =============================================================================

The sampler answers with what it has found; null is what is not known:

====== =============================================================================
jobs   of each job that has run: ``[job, attempt, process that does not answer, the
       supervisor's Use, [CPU time, user time, stall time of I/O, resident bytes, stall
       time of memory, room of the output, bytes read from and written to the disks]]``
disks  by name, the fields of its line in /proc/diskstats
node   ``core.sample.NodeCounters``
files  of some jobs: job, attempt, and the mounts of its open files (lines of mountinfo,
       as latin-1)
====== =============================================================================

or with ``silent``, a job and its process: that one does not answer, so the sampler ends.
"""
