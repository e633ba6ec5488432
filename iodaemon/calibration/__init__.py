"""What a device carries, measured on this machine: the measuring, the knee, and what is kept."""
