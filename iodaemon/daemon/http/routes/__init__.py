"""The routes, by what they do. Importing a module declares those in it."""

from iodaemon.daemon.http import submission
from iodaemon.daemon.http.routes import act, admin, events, hints, history, phases, query

__all__ = ["act", "admin", "events", "hints", "history", "phases", "query", "submission"]
