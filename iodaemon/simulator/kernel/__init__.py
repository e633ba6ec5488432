"""The fast engine for jobs that repeat one compute and one I/O phase on an exclusive resource."""
