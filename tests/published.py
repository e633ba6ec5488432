"""What the shipped experiments are held against."""

import msgspec

from iodaemon.registry import shipped
from iodaemon.simulator.catalogue import load_experiment


def targets(name):
    """The targets of an experiment by id, each a dictionary of what is said of it."""
    file = load_experiment(name, search=[shipped("sim") / "experiments"])
    return {
        target.id: {
            key: value for key, value in msgspec.structs.asdict(target).items() if value is not None
        }
        for target in file.experiment.targets
    }
