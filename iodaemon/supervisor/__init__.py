"""The root side."""
