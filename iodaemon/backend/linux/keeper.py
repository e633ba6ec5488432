"""The keeper: makes jobs, freezes, thaws and kills them; decides nothing.

Tiny, standard library only, starts fast, single-threaded. It remembers nothing that it could not
read back: a new keeper takes over from the job directories. It obeys one user (SO_PEERCRED), and
thaws everything when no daemon has been heard of for ``grace_s``.

Run by ``keeper_main``.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, NoReturn

from iodaemon.backend.linux import protocol, scratch
from iodaemon.backend.linux.adopted import Adopted
from iodaemon.backend.linux.aside import Aside
from iodaemon.backend.linux.condition import of_error, words_of
from iodaemon.backend.linux.connection import Client, Clients
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.freezer import CgroupFreezer, Freezer
from iodaemon.backend.linux.grip import Grip
from iodaemon.backend.linux.io_cap import lines_of
from iodaemon.backend.linux.pool import Pool
from iodaemon.backend.linux.process import (
    Identity,
    close_all_but,
    drain,
    hear_signals,
    identify,
    wake_on_signals,
)
from iodaemon.backend.linux.protocol import Message, job_key
from iodaemon.backend.linux.service import Service, grant, make_cgroup, say
from iodaemon.backend.linux.shim import Shim
from iodaemon.fault import reach
from iodaemon.systemd import notify

_RECHECK_S: Final = 0.01
"""Between looks at a job that has been told to stand still and does not yet."""
_BEATS: Final = 3
"""So often in the grace time it wakes with nothing to do: its shims see that it does."""
_REWRITE_S: Final = 10.0
"""Between attempts to write its own file on a full disk."""
_IDLE_EXIT_S: Final = 1.0
"""A keeper without daemon and without jobs ends after this time beyond the grace time."""


_MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a request that is no such request raises somewhere: numbers too large, words for objects."""


class KeeperError(Exception):
    """A request that cannot be met; its text goes to the daemon.

    Attributes:
        code: for the daemon; empty: none.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class _Asked(NamedTuple):
    """A request that is answered later."""

    client: Client
    request_id: int
    request: Message
    key: str = ""


class Keeper:
    """One keeper, one state directory. ``serve`` runs until there is nothing left to keep.

    As a service it runs until it is told to end by a signal.
    """

    def __init__(
        self,
        state: str,
        listener: socket.socket,
        freezer: Freezer,
        grace_s: float,
        *,
        service: Service | None = None,
    ) -> None:
        self._service = service
        self._state = os.path.realpath(state)
        self._directories = JobDirectories(os.path.join(state, "jobs"), has_shim=self._has_shim)
        self._keeper_file = os.path.join(state, protocol.KEEPER_FILE)
        self._lock_file = os.path.join(state, protocol.LOCK_FILE)
        self._listener = listener
        self._freezer = freezer
        self._grip = Grip(self._directories, freezer)
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        obeyed = {os.geteuid()} if service is None else {os.geteuid(), service.daemon_uid}
        self._clients = Clients(self._selector, self._answer, self._on_client_gone, obeyed)
        self._pool = Pool(
            self._selector,
            self._fork_shim,
            self._become_shim,
            on_word=self._on_word,
            on_over=self._on_over,
        )
        self._adopted = Adopted(
            self._selector, self._directories, self._grip, self._lay_to_rest, self._pool.has
        )
        self._starting: dict[str, list[_Asked]] = {}
        self._kills, self._lists, self._freezes = list[_Asked](), list[_Asked](), list[_Asked]()
        self._heard_s = time.monotonic()
        self._leaving = False
        self._write_due_s, self._is_unwritten = 0.0, False
        me = identify(os.getpid())
        assert me is not None
        self._me: Identity = me

    def _has_shim(self, shim: Identity) -> bool:
        return self._pool.has_shim(shim) or self._adopted.has(shim)

    # -- the loop ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer until told to leave or left alone, and no shim is alive."""
        wake = wake_on_signals()
        hear_signals(signal.SIGCHLD, signal.SIGINT, signal.SIGHUP)
        os.makedirs(self._directories.path, mode=0o700, exist_ok=True)
        self._write_down()
        self._adopted.take_over()
        reach("keeper.took_over")
        say(f"ready, suspends by {self._freezer.detail}, took over {len(self._adopted.keys)} jobs")
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(wake, selectors.EVENT_READ, lambda: self._reap(wake))
        gc.collect()
        gc.freeze()  # the shims share these pages
        if self._service is not None:
            notify("READY=1", f"STATUS=suspends by {self._freezer.detail}")
        while not self._is_done():
            for key, _ in self._next_events():
                key.data()
            self._write_down()
            self._look_at_waiting()
            self._grip.look_at_left()
            self._guard_the_frozen()
        reach("keeper.leaving")
        self._pool.end()
        self._freezer.leave()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._keeper_file)
        say("no daemon and no jobs; it ends")

    def _write_down(self) -> None:
        """Say in the state directory who this is, now or once its disk takes it.

        Only the next keeper needs it, to find this one's cgroups.
        """
        now_s = time.monotonic()
        if now_s < self._write_due_s:
            return
        base = self._freezer.base if isinstance(self._freezer, CgroupFreezer) else None
        self._write_due_s = math.inf
        try:
            record = {**self._me._asdict(), "base": base}
            protocol.write_json(self._keeper_file, record, durable=False)
        except OSError as error:
            self._write_due_s = now_s + _REWRITE_S
            if not self._is_unwritten:
                say(f"{of_error(self._state, error)}; jobs are kept without {protocol.KEEPER_FILE}")
            self._is_unwritten = True

    def _next_events(self) -> list[tuple[selectors.SelectorKey, int]]:
        """What there is to do; a shim for the next job is made when there is nothing else."""
        if self._pool.is_short() and not self._leaving:
            if events := self._selector.select(0):
                return events
            self._pool.make_ready()
        return self._selector.select(self._patience_s())

    def _patience_s(self) -> float | None:
        if self._freezes or self._lists:
            return _RECHECK_S
        waits = self._clients and not (self._leaving or self._grip.maybe_held)
        most_s = max(self._grace_s / _BEATS, _RECHECK_S)
        most_s = most_s if waits else min(0.5, most_s)
        waited_s = self._grip.patience_s()
        return most_s if waited_s is None else min(most_s, waited_s)

    def _is_done(self) -> bool:
        if self._service is not None:
            return False
        if self._pool.busy or self._adopted.keys:
            return False
        if self._clients and not self._leaving:
            return False
        silent_s = time.monotonic() - self._heard_s
        return self._leaving or silent_s > self._grace_s + _IDLE_EXIT_S

    def _guard_the_frozen(self) -> None:
        """Without a daemon, or with one that stands still, nobody would resume them: let all go."""
        silent_s = time.monotonic() - self._heard_s
        if not self._grip.maybe_held or silent_s < self._grace_s:
            return
        say(f"no daemon for {self._grace_s:g} s; {len(self._grip.maybe_held)} jobs run on")
        for key in sorted(self._grip.maybe_held):
            self._thaw(key)
            reach("keeper.let_one_go")

    # -- requests --------------------------------------------------------------------------------

    def _accept(self) -> None:
        if self._clients.accept(self._listener):
            self._leaving = False

    def _on_client_gone(self, client: Client) -> None:
        self._freezes = [asked for asked in self._freezes if asked.client is not client]
        self._lists = [asked for asked in self._lists if asked.client is not client]
        self._heard_s = time.monotonic()

    def _answer(self, client: Client, request: Message) -> None:
        asked = _Asked(client, request.get("id", 0), request)
        self._heard_s = time.monotonic()
        try:
            asked = asked._replace(key=protocol.key_of(request))
            reach("keeper.heard", request["verb"])
            answer = self._verb(request["verb"])(asked)
        except KeeperError as error:
            answer = {"error": str(error), **({"code": error.code} if error.code else {})}
        except OSError as error:
            answer = {"error": words_of(self._state, error)}
        except _MALFORMED as error:
            answer = {"error": f"malformed request: {error!r}"}
        if answer is not None:
            self._reply(asked, answer)

    def _reply(self, asked: _Asked, answer: Message) -> None:
        reach("keeper.done", asked.request.get("verb", ""))
        self._clients.send(asked.client, {"id": asked.request_id, **answer})
        reach("keeper.answered", asked.request.get("verb", ""))

    # -- verbs: each returns its answer, or None when it will come later --------------------------

    def _verb(self, name: str) -> Callable[[_Asked], Message | None]:
        verb = getattr(self, f"_do_{name}", None)
        if verb is None:
            text = f"this keeper (protocol {protocol.VERSION}) has no verb {name!r}"
            raise KeeperError(text, protocol.NO_VERB)
        return verb  # type: ignore[no-any-return]  # found by name

    def _do_hello(self, asked: _Asked) -> Message:
        if discord := protocol.find_discord(asked.request, self._me.pid, self._state):
            say(f"refused a daemon {discord[0]}")
            raise KeeperError(discord[1])
        return {
            "ok": {
                "version": protocol.common_version(asked.request),
                "pid": self._me.pid,
                "freezer": self._freezer.name,
                "detail": self._freezer.detail,
                "controls": self._freezer.controls,
            }
        }

    def _do_start(self, asked: _Asked) -> Message | None:
        key = asked.key
        if key in self._starting:
            self._starting[key].append(asked)
            return None
        if self._pool.has(key) or key in self._adopted.keys:  # also if its directory was removed
            return self._describe(key)
        launch = grant(self._service, asked.request["launch"])
        if not self._directories.make(key):
            return self._describe(key)
        make_cgroup(self._service, self._freezer, key, asked.request["launch"])
        reach("keeper.cgroup_made")
        self._starting[key] = [asked]
        try:
            self._pool.serve(key, launch)
        except OSError:
            del self._starting[key]
            raise
        return None

    def _fork_shim(self) -> int:
        """As ``os.fork``; the child is where shims belong."""
        if not isinstance(self._freezer, CgroupFreezer):
            return os.fork()
        pid, is_home = self._freezer.fork_shim()
        if pid == 0 and not is_home:
            with contextlib.suppress(OSError):
                self._freezer.enter_shims()
        return pid

    def _become_shim(self, line: int, order: Message | None) -> NoReturn:
        """In the forked child: forget all that is the keeper's, and be a shim."""
        try:
            gc.disable()  # it would write to pages that are shared with the keeper
            signal.set_wakeup_fd(-1)
            close_all_but(line)
            shim = Shim(
                self._directories,
                self._freezer,
                self._lock_file,
                line,
                grace_s=self._grace_s,
            )
            shim.run(order)
        except BaseException as error:  # noqa: BLE001 - a fork must not return into the keeper
            told = f"shim: {error!r}"
            if isinstance(error, OSError):
                told = words_of(self._state, error)
            with contextlib.suppress(OSError):
                os.write(line, protocol.encode({"error": told}))
        finally:
            os._exit(1)

    def _on_word(self, key: str, word: Message) -> None:
        """What the shim says of its job."""
        reach("keeper.reported_to")
        self._has_begun(key, word if "error" in word else {"ok": {"alive": True, **word}})

    def _has_begun(self, key: str, answer: Message) -> None:
        for asked in self._starting.pop(key, ()):
            self._reply(asked, answer)
        for asked in [asked for asked in self._kills if asked.key == key]:
            self._kills.remove(asked)
            try:
                self._reply(asked, self._kill(asked))
            except OSError as error:  # nothing of one request may end all jobs' keeper
                self._reply(asked, {"error": words_of(self._state, error)})

    def _on_over(self, key: str) -> None:
        """Its shim has nothing more to do with it, or is gone."""
        if key in self._starting:  # it said nothing, but may have let its job go
            self._has_begun(key, self._describe(key))
        self._lay_to_rest(key)

    def _describe(self, key: str) -> Message:
        """The answer that says what is there of the attempt, or why that cannot be said."""
        try:
            return {"ok": self._directories.describe(key, self._me)}
        except OSError as error:
            return {"error": words_of(self._state, error)}

    def _lay_to_rest(self, key: str) -> None:
        self._grip.lay_to_rest(key)

    def _do_freeze(self, asked: _Asked) -> Message | None:
        if self._grip.freeze(asked.key, self._shim_of(asked)):
            return {"ok": {"frozen": True}}
        self._freezes.append(asked)
        return None

    def _shim_of(self, asked: _Asked) -> Identity:
        shim = self._directories.find_shim(asked.key)
        if shim is None:
            raise KeeperError(
                f"job {asked.request['job']} has no living shim, which would let it go "
                "if this keeper died"
            )
        return shim

    def _do_cap(self, asked: _Asked) -> Message:
        lines = lines_of(asked.request["caps"])
        if lines:
            self._shim_of(asked)
        self._grip.cap(asked.key, lines)
        return {"ok": {"capped": bool(lines)}}

    def _do_thaw(self, asked: _Asked) -> Message:
        self._thaw(asked.key)
        return {"ok": {"frozen": False}}

    def _do_kill(self, asked: _Asked) -> Message | None:
        """What is between fork and exec hears no SIGTERM, and may not be in its cgroup yet."""
        if asked.key not in self._starting:
            return self._kill(asked)
        if protocol.signal_of(asked.request) is signal.SIGKILL:  # one that is none ends here
            self._kill(asked)
        self._kills.append(asked)
        return None

    def _kill(self, asked: _Asked) -> Message:
        self._directories.note_told(asked.key)
        count = self._grip.kill(asked.key, protocol.signal_of(asked.request))
        self._thaw(asked.key)
        return {"ok": {"signalled": count}}

    def _do_list(self, asked: _Asked) -> Message | None:
        keys = {job_key(int(job), int(attempt)) for job, attempt in asked.request["jobs"]}
        if any(self._is_undecided(key) for key in keys):
            self._lists.append(asked)
            return None
        pairs = [(int(job), int(attempt)) for job, attempt in asked.request["jobs"]]
        return {"ok": {"jobs": [self._grip.describe(*pair, self._me) for pair in pairs]}}

    def _is_undecided(self, key: str) -> bool:
        """True while its shim has not said yet that it runs the job: it is about to, or never."""
        if key not in self._starting:
            return False
        return not self._directories.has_status(key) and self._directories.find_main(key) is None

    def _do_tidy(self, asked: _Asked) -> Message:
        self._grip.lay_to_rest(asked.key)
        return {"ok": {}}

    def _do_scratch(self, asked: _Asked) -> Message | None:
        """Measure or remove, in a process of its own; its last word is the answer.

        A disk that does not answer holds that process, and the answer, until it does.
        """
        directory, measures = self._directories.of(asked.key), bool(asked.request.get("measure"))
        if not self._directories.has_scratch(asked.key):
            return {"ok": {"state": "removed"}}
        if not measures and self._is_left(asked.key):
            return {"ok": {"state": "used"}}
        is_freed = bool(asked.request.get("free"))
        work = partial(scratch.remove, directory, is_freed=is_freed)
        last: Message = {"state": "lost"}
        late_s = time.monotonic() + scratch.TURN_S

        def hear(word: Message | None) -> None:
            if word is None:
                if last == {"state": "lost"} and time.monotonic() > late_s:
                    last["state"] = "silent"
                self._reply(asked, {"error": last["error"]} if "error" in last else {"ok": last})
            else:
                last.clear()
                last.update(word)

        if measures:
            work = partial(scratch.measure, directory)
        Aside(self._selector, self._fork_shim, work, hear)
        return None

    def _do_retire(self, asked: _Asked) -> Message:
        before_s, most = float(asked.request["before_s"]), int(asked.request["most"])
        return {"ok": {"removed": self._directories.retire(before_s, most)}}

    def _do_leave(self, _asked: _Asked) -> Message:
        self._leaving = self._service is None
        return {"ok": {"jobs": self._pool.busy + len(self._adopted.keys)}}

    # -- jobs ------------------------------------------------------------------------------------

    def _thaw(self, key: str) -> None:
        self._grip.thaw(key)
        for asked in [asked for asked in self._freezes if asked.key == key]:
            self._freezes.remove(asked)
            self._reply(asked, {"ok": {"frozen": False}})

    def _look_at_waiting(self) -> None:
        lists, self._lists = self._lists, []
        for asked in lists:
            self._answer(asked.client, asked.request)
        for asked in list(self._freezes):
            answer = self._grip.look_again(asked.key)
            if answer is not None:
                self._freezes.remove(asked)
                self._reply(asked, answer)

    def _is_left(self, key: str) -> bool:
        """True while somebody of the attempt may be in its directories."""
        if key in self._starting or self._directories.find_shim(key) is not None:
            return True
        return not self._directories.has_status(key) and self._grip.has_processes(key)

    def _reap(self, wake: int) -> None:
        drain(wake)
        self._pool.reap()
