"""Setting the service up on a machine, and taking it away again.

``layout`` says what belongs where, ``plan`` decides what is to be done, and ``perform`` looks at
the machine and does it. Planning is pure, so that ``--dry-run`` is the plan itself. ``program``
says whether all users can run the installed ``iod`` and root can trust it.
"""
