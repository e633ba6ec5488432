"""Rules for allocation: which disk holds a request for space, one file a rule."""
