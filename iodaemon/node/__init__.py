"""The daemon's side of one Linux server: what it is, what its jobs use, and the root side's client.

Begin reading with ``linux`` (the backend), then ``supervisor_client`` (the line to the supervisor),
``outcome`` (what its reports mean to the controller) and ``staging`` (the program in which a job
runs whose data are copied in and out). ``topology`` and ``devices`` find sockets and disks,
``condition`` and ``feature`` say what is wrong with the machine or missing, ``sampler`` reads the
counters. In all of it ``root`` is ``/``, or a directory that looks like it.
"""
