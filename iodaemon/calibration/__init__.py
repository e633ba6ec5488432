"""``iod calibrate``: what a disk carries, measured, kept, and used by the daemon.

Begin with ``measure``, which does it: on the ``ground`` that was looked at before, by the steps of
``plan``, with readers of a ``crew``, while ``beside`` watches that the disk answers and nobody else
uses it. ``knee`` finds where readers slow each other down. ``record`` has what is kept and what the
daemon makes of it, ``store`` where.
"""
