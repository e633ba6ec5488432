"""The service: wall time, journal, HTTP. It decides nothing; the controller does."""
