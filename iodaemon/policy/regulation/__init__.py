"""Which running jobs stand still for the next timeslice. One module, one rule."""
