"""Reads the counters of jobs, disks and the machine from /proc and cgroups.

``client`` is the daemon's side: it has the process started and asks for samples; begin reading
there. ``sweep`` is the process; it imports the standard library only. Its class ``Job`` reads a job
through ``job_io`` (which also ends the process if a read hangs) and ``open_files``. ``proc_files``
has one parser for each kernel file; other packages use it too.

Each message is one JSON object in one line. The daemon sends ``devices`` (``major:minor`` of leaf
disks, by name) and ``cpus`` (of each partition, by its number), then one request for each sweep:

====== =============================================================================
jobs   all that are read from now on: ``[job, attempt, holder, silent]``. ``holder`` is the
       pid of what holds a job without a cgroup, ``silent`` a process that did not answer,
       which is not read until it does. Missing if they are the same as before
read   jobs that are read even if they have not run: those that are unknown, and those with
       new reaped processes
====== =============================================================================

The sampler answers; what is unknown is null:

====== =============================================================================
jobs   of each job that has run: ``[job, attempt, process that does not answer, the
       supervisor's Use, [CPU time, user time, stall time of I/O, resident bytes, stall
       time of memory, room of the output, bytes read from and written to the disks]]``
disks  by name, the fields of its line in /proc/diskstats
node   ``core.sample.NodeCounters``
files  of some jobs: job, attempt, and the mounts of its open files (lines of mountinfo,
       as latin-1)
====== =============================================================================

or ``silent``, a job and a process of it that does not answer; then the sampler ends.
"""
