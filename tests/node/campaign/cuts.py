"""Power failures within the log of a real round: what was acknowledged is there, or came later."""

from ledger import read_journal
from write_ahead_log import commits, laid_out, places

COMMITS = 30
"""The last so many transactions are cut at their edges; the last one also within."""


def cut_round(player, folder, every):
    """Kill the daemon, cut its log and hold what is found against what clients were told.

    Args:
        player: of the round; has no daemon afterwards.
        folder: for copies.
        every: of a page every so many bytes are tried, of headers and edges each.

    Returns:
        How many cuts were tried, and what was wrong, one sentence each.
    """
    last = player.submit("short")
    player.server.outcome(last)
    player.kill_daemon()
    database = player.journal.read_bytes()
    log = player.journal.with_name("journal.db-wal").read_bytes()
    ends = commits(log)[-COMMITS:]
    states = {end: read_journal(laid_out(folder, database, log[:end])) for end in ends}
    told, wrong, cuts = player.told.acknowledged, [], 0
    for place in [*edges(ends), *places(ends[-2], ends[-1], every)]:
        found = read_journal(laid_out(folder, database, log[:place]))
        kept = max(end for end in ends if end <= place)
        cuts += 1
        if found != states[kept]:
            wrong.append(f"a log cut at byte {place} is not as at {kept}")
    for job in told:
        held = [job in states[end][0] for end in ends]
        if not held[-1] or held != sorted(held):
            wrong.append(f"job {job} was acknowledged and is lost by a cut after its commit")
    return cuts, wrong


def edges(ends):
    """Just before, at and just after the end of each transaction but the first."""
    return [end + by for end in ends[1:] for by in (-1, 0, 1) if end + by <= ends[-1]]
