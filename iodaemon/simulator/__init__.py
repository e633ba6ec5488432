"""The same controller in virtual time: timeline, workloads, runs."""
