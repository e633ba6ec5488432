"""The physics of a simulated platform: links, stores, page cache, disk, and what jobs do."""
