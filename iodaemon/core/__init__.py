"""The pure heart: jobs, platform, samples, state, controller. No clock, no I/O, no threads."""
