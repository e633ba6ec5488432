"""Programs that read, write and compute, for trials and calibrations. Standard library only."""
