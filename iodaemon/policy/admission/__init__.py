"""Which queued jobs start now. One module, one rule."""
