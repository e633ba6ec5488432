#!/bin/sh
# Submit it as it is: iod submit examples/job.sh
# It writes 64 MiB in 2 of its 10 seconds, so about 32 MB/s in a fifth of its run time.
#IOD name=example cpus=1 time=5m
#IOD io=32MB/s,20%
set -e
file=$(mktemp)
trap 'rm -f "$file"' EXIT

sleep 4
for _ in 1 2; do
    dd if=/dev/zero of="$file" bs=1M count=32 conv=fsync 2>/dev/null
    sleep 1
done
sleep 4
