"""Real jobs on the real machine, and what is measured of them. The daemon uses none of it."""
