"""The real server: topology, devices, keeper, shim, measuring.

Kept free of imports: the keeper lives here and must start fast.
"""
