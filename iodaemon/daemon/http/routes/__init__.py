"""The routes, by what they do. Each module declares its own."""
