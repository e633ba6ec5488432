"""The HTTP API as a client sees it: the shapes of its answers, and a client for them."""
