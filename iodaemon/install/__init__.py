"""Setting the service up on a machine, and taking it away again.

``layout`` says what belongs where, ``host`` looks at the machine, ``plan`` decides what is to be
done, and ``perform`` does it. Planning is pure, so that ``--dry-run`` is the plan itself.
"""
