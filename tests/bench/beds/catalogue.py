"""All beds, in the order of the report."""

from beds import anonymous, compute, idle, lookups, mixed, rereads, streams, writers

BEDS = {
    **streams.BEDS,
    **rereads.BEDS,
    **lookups.BEDS,
    **anonymous.BEDS,
    **writers.BEDS,
    **mixed.BEDS,
    **compute.BEDS,
    **idle.BEDS,
}
