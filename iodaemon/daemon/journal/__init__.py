"""The journal: all that must survive a power failure, in one SQLite database.

======= =========================================================================================
table   one row
======= =========================================================================================
job     what was submitted; written once
life    what became of a job: narrow, and written again with each of its steps
event   a step of a job, or a note of the regulation or an administrator; streams resume by its id
request a submission that had an idempotency key; goes with its first job
usage   what a job moved in one minute
======= =========================================================================================

Environments, imported runs, forgotten keys, lessons and samples have a table each; ``meta`` has
what concerns the journal as a whole.

Begin reading with ``record`` (what is written in one piece, and its rows), then ``writer`` (one
thread, group commit). ``schema`` has the tables, ``store`` each statement that writes, ``load``
each query. ``backup`` copies a journal, ``restore`` puts a copy in its place.
"""
