"""The root side: makes jobs, freezes, thaws and kills them, and knows how each one ended.

It decides nothing and touches no disk. Standard library only: ``iod`` itself is not imported here.
Begin reading with ``protocol`` (what the daemon says), ``ledger`` (what outlives everything), then
``attempts`` (what becomes of a job), ``launch`` and ``launcher`` (its way to ``execve``).

Processes
=========
``anchor``      subreaper that waits, and starts the supervisor again. Hands it the listening
                sockets, the lock and the ledger.
supervisor      (``server``, ``line``, ``orders``, ``attempts``) one thread, one epoll loop.
                Parent of every job. ``beat`` to the anchor three times in the grace time.
``launcher``    it clones on order (CLONE_PARENT, CLONE_INTO_CGROUP): the child is the
                supervisor's own and in its cgroup from its first instruction. ``launcher.c``,
                where that could be compiled and runs.
the child       reads its launch from a socketpair, takes on all that the job is to have, waits
                for its ``EXEC`` record, appends that and executes.
the sampler     forked on the daemon's wish, becomes its user, and reads counters for it
                (``iodaemon.node.sampler``); its child, but nothing that it depends on.
a holder        (``holder``) one a job without a writable cgroup: it reaps, stops and continues in
                the place of the supervisor, which tells it by signals.
``scratch``     a forked helper with a deadline for what must touch a disk (``disk_trouble``).

A job is its cgroup, ``jobs/<job>.<attempt>`` (``cgroup``). It ends when nothing lives in it
(``populated 0``), not when its first process does. Jobs of a service are in a scope of systemd's
(``systemd``), in which nobody else is: the service may be restarted while they run, and to stop
the scope ends them all, which is told of each (``from_outside``). A user's own root side has its
cgroups below the one that it was begun in, itself in one of them.

What the ledger records
=======================
``EXEC``  by the child, just before ``execve``. Without it the attempt never ran.
``EXIT``  how the first process ended; before it is waited for.
``USE``   bytes, calls and CPU time of all that its writer has waited for so far, the first
          process and orphans; after that. Without the first process, or with ``AT_LEAST``, a
          total is told as "at least" (``whole`` is False). Superseded ones are given back.

``AT_LEAST`` is set where a zombie ignored SIGCHLD, or the cgroup used CPU time that no reaped
process accounts for (SA_NOCLDWAIT): the kernel then reaped children by itself.

What each death does
====================
daemon          jobs run on; after the grace time nothing stands still. What it had prepared and
                not let run ends with its line.
supervisor      its children become the anchor's, which lets all run on, takes them in with the
                same code (``reap``) and starts the next supervisor. A child that has not read
                its ``EXEC`` ends by the end of its socketpair.
anchor          the supervisor goes on, ``protected`` is False; once nothing runs it ends. systemd
                has started an anchor that waits for the lock; a user's own daemon starts one.
launcher        started again; orders that it had not carried out are given again.
sampler         the daemon wishes for another one.
holder          its job goes on, and can be killed; it cannot be frozen any more.
anchor and      a running job is found by its cgroup, with the ledger or without, and how it ends
supervisor      is ``lost``. Exit codes that were recorded stay known as long as the ledger is.
all of a unit   ``ExecStopPost`` lets all jobs run on (``anchor.thaw_all``).
anyone, stuck   a supervisor that says nothing for the grace time: the anchor lets all jobs run on
                and continues it, and kills it after four. A daemon likewise, by the supervisor.

What the next supervisor finds
==============================
no EXEC, an empty cgroup       absent: it never ran, and may be prepared again
no EXEC, a child is there      for a second it may still append it; then it is killed
no EXEC, a job is there        running (whoever has executed has another name); its end is lost
EXEC, populated                running
EXEC and EXIT, empty           ended
EXEC, empty, no EXIT           once the anchor says that it has taken in everything: lost

Upgrade is ``execve`` in place (wish ``reexec`` or SIGHUP; supervisor, then anchor): children and
ledger stay, and the daemon connects again. Where it fails, all stays as it was.
Only ``hello`` and ``reexec`` never change.
"""
