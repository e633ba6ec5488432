"""Which partition (socket) a job gets. One module, one rule."""
