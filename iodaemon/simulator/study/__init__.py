"""What the experiments compute: one module a study, found by its file's name.

``iodaemon/simulator/study/<name>.py`` has a frozen struct ``Study`` whose fields are the parameters
that an experiment file may set (``[parameters]``, checked like those of a rule).

Beyond the protocol (``iodaemon.simulator.experiment.Study``) a study may have
``summary(rows) -> Sequence[Row]``: a table of its own, for people, where there are no targets.
"""
