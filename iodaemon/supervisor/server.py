"""The supervisor: parent of every job. One thread, one epoll loop, no disk.

It holds no truth of its own: what an attempt is follows from the ledger, the cgroup (or holder)
and the socketpair of a child that has not executed yet. So a supervisor that was killed, or
replaced itself by ``execve``, begins by looking, and a wish or a report that is lost is made good
by the daemon's ``sync``. It reads /proc of zombies only, and never waits for any process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from iodaemon.supervisor import anchor as root
from iodaemon.supervisor import ledger as records
from iodaemon.supervisor import protocol, syscalls
from iodaemon.supervisor.anchor import Config, Shared
from iodaemon.supervisor.attempts import (
    BEFORE,
    ENDS,
    FAILED,
    OVER,
    PREPARED,
    RUNNING,
    SETTLING,
    Attempt,
    Attempts,
    describe_ends,
)  # fmt: skip
from iodaemon.supervisor.cgroup import Cgroups, PlaceGoneError
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.holder import Holders
from iodaemon.supervisor.launch import Launch, parse_launch
from iodaemon.supervisor.ledger import Key, Ledger, parse_key
from iodaemon.supervisor.line import DaemonLine, Loop
from iodaemon.supervisor.orders import Orders
from iodaemon.supervisor.protocol import BadInputError, Message
from iodaemon.supervisor.reap import is_stopped, read_small, send
from iodaemon.supervisor.scratch import Desk, write_in_time
from iodaemon.supervisor.syscalls import say

_SOCKET_EVERY_S: Final = 1.0
_LEAVE_LOOK_S: Final = 0.02
_MOST_FILES: Final = 1 << 18
_OWNER: Final = "owner"
"""In the runtime directory: the state directory of the daemon that the attempts belong to."""
_MOST_SAMPLERS: Final = 4
"""That do not end by SIGKILL, since a dead disk keeps them; then there is no other."""
_SHOWN: Final = 120


class Server:
    """One supervisor. ``run`` returns when it has nothing left to do."""

    def __init__(self, config: Config, shared: Shared, anchor: int | None) -> None:
        self._config = config
        self._ledger = Ledger(shared.ledger)
        self._ledger.begin()
        self._means: Cgroups | Holders
        if config.cgroup == "none":
            self._means = Holders(self._ledger, config.lack, config.detail)
        else:
            self._means = Cgroups(config.cgroup)
            self._means.hand_down()
        self._loop = Loop()
        self._line = DaemonLine(config, shared, self._loop)
        self._send = self._line.send
        self._orders = Orders(config, shared.ledger, self._means, self._loop)
        self._attempts = Attempts(
            self._ledger,
            self._means,
            self._orders,
            self._loop,
            send=self._send,
            ask_anchor=lambda: self._tell_anchor(b"beat"),
        )
        self._anchor = None if anchor is None else socket.socket(fileno=anchor)
        self._line.on_end = self._attempts.take_back
        self._owner_path, self._owner = os.path.join(config.runtime, _OWNER), b""
        with contextlib.suppress(OSError):
            self._owner = read_small(self._owner_path)
        self._is_left = self._is_anchor_stopped = False
        self._is_terminated = self._is_leaving = False
        own, least = os.geteuid(), config.min_uid
        uids = (own, own) if least is None else (least, (1 << 32) - 2)
        self._desk = Desk(self._loop, self._send, uids, config.outputs)
        self._samplers: list[int] = []
        self._wishes: dict[str, Callable[[Message], None]] = {
            "hello": self._hello, "prepare": self._prepare, "run": self._run_wish,
            "forget": self._forget, "sync": self._sync, "beat": self._beat,
            "sampler": self._start_sampler, "scratch": self._desk.ask,
            "leave": self._say_goodbye, "reexec": self._reexec,
        }  # fmt: skip
        self._wishes_of_live: dict[str, Callable[[Attempt, Message], None]] = {
            "freeze": lambda attempt, _: self._hold(attempt, is_still=True), "thaw": self._thaw,
            "signal": self._signal, "kill": self._kill, "cap": self._cap,
        }  # fmt: skip

    # -- the loop ----------------------------------------------------------------------------------

    def run(self, *, is_again: bool) -> None:
        if is_again:  # where this program does not begin, the anchor is there as it was
            self._tell_anchor(b"reexec")
        syscalls.ignore_no_signal()
        self._signals = syscalls.open_signals(*syscalls.HEARD)
        if self._anchor is not None:
            self._anchor.setblocking(False)  # noqa: FBT003
            self._loop.add(self._anchor.fileno(), self._on_anchor)
        else:
            self._attempts.clean_s = math.inf
        self._loop.add(self._signals, self._on_signal)
        reach("supervisor.begun")
        self._attempts.take_over()
        self._beat_anchor()
        self._look_after_line()
        reach("supervisor.ready")
        try:
            while not self._is_leaving:
                for line in self._line.hear():  # in every round
                    self._take_wish(line)
                self._loop.work_off()
                self._orders.work_off()  # not behind all that is due
                self._line.flush()
                self._loop.turn()
        except PlaceGoneError:
            say("the place of all jobs was removed; the anchor makes it, and a supervisor, again")
        else:
            self._leave()

    def _beat_anchor(self) -> None:
        self._tell_anchor(b"beat")
        was_stopped = self._is_anchor_stopped
        self._is_anchor_stopped = self._anchor is not None and is_stopped(anchor := os.getppid())
        if self._is_anchor_stopped and was_stopped:  # a job of a user's own daemon may do that
            say("somebody stopped the anchor; it goes on")
            send([anchor], signal.SIGCONT, is_stopped)
        if isinstance(self._means, Holders):
            for attempt in self._attempts.all.values():
                if attempt.wants_still and attempt.stage not in OVER:
                    self._means.freeze(attempt.key)
        self._loop.call_in(self._config.grace_s / root.BEATS, self._beat_anchor, self._beat_anchor)

    def _look_after_line(self) -> None:
        if isinstance(self._means, Holders):
            self._attempts.look_at_all()
        if self._line.keep_socket():
            self._note_owner()
        if self._line.silence.begins():
            self._let_all_go(f"no daemon for {self._config.grace_s:g} s")
        self._check_idle()
        wait_s = min(
            _LEAVE_LOOK_S if self._is_left else _SOCKET_EVERY_S, self._line.silence.wait_s()
        )
        self._loop.call_in(wait_s, self._look_after_line, self._look_after_line)

    def _on_signal(self) -> None:
        numbers = syscalls.read_signals(self._signals)
        if signal.SIGTERM in numbers:
            self._is_terminated = self._is_leaving = True
        elif signal.SIGHUP in numbers:
            self._take_wish(protocol.encode({"wish": "reexec"}))

    def _let_all_go(self, why: str) -> None:
        """Nobody is there who would resume them."""
        count = 0
        for attempt in self._attempts.all.values():
            was_meant, attempt.wants_still = attempt.wants_still, False
            if attempt.stage in OVER:
                continue
            if self._means.let_go(attempt.key) or was_meant:
                count += 1
                self._attempts.look_in(attempt, 0.0)
        if count:
            say(f"{why}; {count} jobs run on")
            reach("supervisor.let_go")

    # -- beginning and end -------------------------------------------------------------------------

    def _check_idle(self) -> None:
        is_idle = (
            all(a.stage in OVER for a in self._attempts.all.values()) and not self._desk.is_busy
        )
        if is_idle and self._anchor is None:
            say("nothing runs; this supervisor ends for want of an anchor, and makes room for one")
            self._is_leaving = True
        has_left = self._is_left or self._line.silence.lasts_s() > self._config.grace_s
        is_alone = not self._line.is_connected and has_left
        if is_idle and is_alone and not self._config.is_service:
            self._is_leaving = True

    def _leave(self) -> None:
        """Jobs outlive this process; how they end is then lost."""
        self._let_all_go("the supervisor ends")
        if self._is_terminated and self._config.outputs is not None:
            path = os.path.join(os.path.dirname(self._config.outputs), ENDS)
            self._ledger.catch_up()
            ends = protocol.encode(describe_ends(self._ledger))
            write_in_time(path, ends, self._config.daemon_gid)
        self._orders.close()
        self._end_samplers()
        self._attempts.scan()
        reach("supervisor.leaving")
        self._tell_anchor(b"over")
        if self._anchor is None:
            root.clear(self._config, self._means if isinstance(self._means, Cgroups) else None)

    def _reexec(self, _: Message) -> None:
        """Become the program that is installed now; children and ledger stay, lines end.

        Where it is not there all stays as it is.
        """
        reach("supervisor.reexec")
        resume: dict[str, Any] = {"shared": list(self._line.shared), "again": True}
        fds = self._line.shared.fds()
        if self._anchor is not None:
            resume["anchor"] = self._anchor.fileno()
            fds.append(self._anchor.fileno())
        root.execute("server", [self._config.dump(), json.dumps(resume)], fds)

    # -- the anchor --------------------------------------------------------------------------------

    def _tell_anchor(self, word: bytes) -> None:
        if self._anchor is not None:
            with contextlib.suppress(OSError):
                self._anchor.send(word)

    def _on_anchor(self) -> None:
        assert self._anchor is not None
        word = syscalls.receive(self._anchor, 64)
        if word is None:
            return
        if not word:
            self._loop.remove(self._anchor.fileno())
            self._anchor.close()
            self._anchor = None
            self._attempts.clean_s = math.inf
            say("the anchor died; jobs are unprotected until none runs")
            self._send({"protected": False})
        else:  # it has taken in all its children that have ended
            self._attempts.clean_s = time.monotonic()
            self._attempts.read_ledger()

    # -- wishes ------------------------------------------------------------------------------------

    def _take_wish(self, line: bytes) -> None:
        wish: Message = {}
        try:
            wish = protocol.decode(line)
            name = protocol.field(wish, "wish", str, "")
            if name not in self._wishes and name not in self._wishes_of_live:
                self._refuse(wish, f"no such wish: {name[:40]!r}")
            elif not self._line.speaks and name not in ("hello", "reexec"):
                self._refuse(wish, "no hello, or one of another protocol")
            elif name in self._wishes:
                self._wishes[name](wish)
            else:
                key, attempt = self._find(wish)
                if attempt is None or attempt.stage in OVER:
                    self._tell(key, attempt)
                else:
                    self._wishes_of_live[name](attempt, wish)
        except (BadInputError, ValueError) as error:
            self._refuse(wish, str(error))
        except OSError as error:
            self._refuse(wish, f"{error.strerror or error}")

    def _refuse(self, wish: Message, why: str) -> None:
        about: Message = {name: str(wish[name])[:64] for name in ("wish", "key") if name in wish}
        self._send({"error": why[:256], **about})

    def _find(self, wish: Message) -> tuple[Key, Attempt | None]:
        """The attempt; None: it is absent."""
        key = parse_key(wish.get("key"))
        attempt = self._attempts.all.get(key)
        if attempt is None or attempt.is_forgotten:
            is_there = attempt is None and self._means.look(key).is_populated
            attempt = self._attempts.settle(key) if is_there else None
            if attempt is not None:
                attempt.is_asked = True
        return key, attempt

    def _say_goodbye(self, _: Message) -> None:
        """The daemon ends: nothing may stand still, and without jobs nobody is needed."""
        self._let_all_go("the daemon ended")
        self._is_left = not self._config.is_service
        self._loop.call_in(0.0, self._look_after_line, self._look_after_line)
        running = sum(a.stage not in OVER for a in self._attempts.all.values())
        self._send({"left": running})

    def _hello(self, wish: Message) -> None:
        self._is_left = self._line.speaks = False
        self._check_owner(protocol.field(wish, "state", str, ""))
        self._line.speaks = wish.get("protocol") == protocol.VERSION
        self._send({
            "hello": {
                "protocol": protocol.VERSION,
                "pid": os.getpid(),
                "ledger": self._ledger.identity,
                "boot": records.read_boot_id(),
                "means": self._means.name,
                "detail": self._means.detail,
                "lack": self._means.lack,
                "base": self._means.base,
                "unit": self._means.unit,
                "controls": list(self._means.controls),
                "protected": self._anchor is not None,
                "min_uid": self._config.min_uid,
                "grace_s": self._config.grace_s,
            }
        })  # fmt: skip

    def _check_owner(self, state: str) -> None:
        """Note whose the attempts are. Raises BadInputError: another daemon's."""
        given, owner = os.fsencode(state), self._owner
        if given in (b"", owner):
            return
        if owner and not all(attempt.is_forgotten for attempt in self._attempts.all.values()):
            shown = os.fsdecode(owner)[:_SHOWN]
            text = "start that one again, or name another runtime directory"
            raise BadInputError(f"it keeps jobs of the daemon with state directory {shown}; {text}")
        self._owner = given
        self._note_owner()

    def _note_owner(self) -> None:
        """For the supervisor that comes after this one."""
        with contextlib.suppress(OSError), open(self._owner_path, "wb") as file:
            file.write(self._owner)

    def _prepare(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        limits = protocol.parse_limits(protocol.field(wish, "launch", dict, {}))
        if attempt is not None and attempt.stage not in (SETTLING, FAILED):
            self._attempts.report(attempt)  # at most one start of an attempt
            return
        launch, why_not = self._read_launch(key, wish)
        is_clean = attempt is None or (attempt.stage == FAILED and attempt.is_removed)
        if attempt is None or attempt.stage == FAILED:
            attempt = self._attempts.begin(key)
        attempt.launch, attempt.limits, attempt.is_asked = launch, limits, True
        if not is_clean:  # what it left goes first, unless that runs
            self._attempts.look_in(attempt, 0.0)
        elif launch is None:
            self._attempts.fail(attempt, **why_not)
        else:
            self._attempts.order(attempt)

    def _read_launch(self, key: Key, wish: Message) -> tuple[Launch | None, Message]:
        """What is to run; None: it is not to be, and why (``Attempts.fail``)."""
        least, outputs = self._config.min_uid, self._config.outputs
        try:
            launch = parse_launch(wish)
        except BadInputError as error:
            return None, _lasting("bad_launch", f"the launch is not well-formed: {error}")
        uid = launch.uid
        if least is None and uid not in (None, os.geteuid()):
            return None, _lasting("no_account", f"jobs of uid {uid} are not run here")
        if least is not None and (uid is None or uid < least):
            problem = f"jobs of uid {uid} are not run here; min_uid is {least}"
            return None, _lasting("no_account", problem)
        if launch.report and outputs is None:
            return None, _lasting("output", "there is no directory for its report")
        if not self._ledger.has_room():
            return None, {"code": "ledger_full", "problem": "the ledger has no room"}
        own = "" if outputs is None else os.path.join(outputs, str(key))
        return launch._replace(own=own, uid=None if least is None else uid), {}

    def _run_wish(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        if attempt is not None:
            attempt.wants_run = True
        if attempt is not None and attempt.stage == PREPARED:
            self._attempts.go(attempt)
        elif attempt is None or attempt.stage not in BEFORE:
            self._tell(key, attempt)

    def _thaw(self, attempt: Attempt, _: Message) -> None:
        """A ``sync`` continues nothing that a user stopped; this does."""
        self._hold(attempt, is_still=False)
        if attempt.stage == RUNNING:
            self._attempts.continue_stopped(attempt)

    def _hold(self, attempt: Attempt, *, is_still: bool) -> None:
        attempt.wants_still, attempt.continue_until_s = is_still, 0.0
        if attempt.stage == RUNNING:
            (self._means.freeze if is_still else self._means.thaw)(attempt.key)
            reach("supervisor.held")
            attempt.looks, attempt.is_told = 0, False
            self._attempts.look(attempt)
            if not attempt.is_told:
                self._attempts.report(attempt)

    def _tell(self, key: Key, attempt: Attempt | None) -> None:
        if attempt is None:
            self._send({"key": str(key), "state": "absent"})
        else:
            self._attempts.report(attempt)

    def _signal(self, attempt: Attempt, wish: Message) -> None:
        number = protocol.number(wish, "number", 1, 64)
        if number is None:
            raise BadInputError("number is missing")
        if attempt.stage in BEFORE:
            raise BadInputError("it does not run yet")
        attempt.was_told = True
        self._means.signal(attempt.key, number)

    def _kill(self, attempt: Attempt, _: Message) -> None:
        if attempt.stage in BEFORE:
            self._attempts.cancel(attempt, "killed", "it was killed before it ran")
            return
        attempt.was_told = attempt.is_killed = True
        self._means.kill(attempt.key)
        self._attempts.look_in(attempt, 0.0)  # somebody may have taken it out of its cgroup

    def _cap(self, attempt: Attempt, wish: Message) -> None:
        self._means.cap(attempt.key, protocol.parse_caps(wish))

    def _forget(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        if attempt is None:
            return
        if attempt.stage not in OVER:
            raise BadInputError("it has not ended")
        attempt.is_forgotten = True
        self._ledger.forget(key)
        self._attempts.used.discard(key)
        self._attempts.tidy(attempt)

    def _sync(self, wish: Message) -> None:
        """One report a key. What the daemon does not name and has ended is forgotten."""
        named: dict[Key, bool] = {}
        for pair in protocol.field(wish, "keys", list, []):
            if not isinstance(pair, list) or len(pair) != 2 or pair[1] not in ("run", "freeze"):
                raise BadInputError("keys are no pairs of key and run or freeze")
            named[parse_key(pair[0])] = pair[1] == "freeze"
        self._attempts.used.update(named)  # a new daemon knows nothing of what was used
        for key, is_still in named.items():
            _, attempt = self._find({"key": str(key)})
            if attempt is not None and attempt.stage in (SETTLING, RUNNING):
                attempt.is_asked = True
                self._hold(attempt, is_still=is_still)
            else:
                self._tell(key, attempt)
        for key, attempt in list(self._attempts.all.items()):
            if key in named:
                continue
            self._attempts.look(attempt)  # the ledger may have records of what was forgotten
            if attempt.stage in OVER:
                self._forget({"key": str(key)})
            elif attempt.stage != RUNNING or attempt.look.is_populated:
                self._attempts.report(attempt)
        self._send({"synced": len(named)})

    def _beat(self, wish: Message) -> None:
        if isinstance(self._means, Holders):
            self._attempts.read_ledger()
        self._ledger.catch_up()
        used = {}
        for key in self._attempts.used:  # of a key without records as well: the daemon waits
            entry = self._ledger.entries.get(key)
            used[str(key)] = (records.Use() if entry is None else entry.use)._asdict()
        self._attempts.used.clear()
        n = protocol.number(wish, "n", 0, 1 << 53)
        self._send({"beat": n, "use": used, "protected": self._anchor is not None})

    def _start_sampler(self, wish: Message) -> None:
        """By a fork: a disk that does not answer keeps the child, not this process. It becomes the
        daemon's user by itself.
        """
        address = bytes.fromhex(protocol.field(wish, "address", str, ""))
        if len(address) < 2 or address[0] != 0:
            raise BadInputError("address is not that of an abstract socket")
        self._end_samplers()
        if len(self._samplers) >= _MOST_SAMPLERS:
            raise BadInputError("too many samplers do not end: a disk does not answer")
        config, base = self._config, self._means.base
        settings = {
            "address": address.hex(),
            "parent": os.getpid(),
            "uid": config.daemon_uid,
            "gid": config.daemon_gid,
            "jobs": None if base is None else f"{base}/jobs",
            "outputs": config.outputs,
        }
        pid = syscalls.fork(lambda: root.execute(root.SAMPLER, [json.dumps(settings)], []))
        self._samplers.append(os.pidfd_open(pid))

    def _end_samplers(self) -> None:
        """Kill them; those that have not ended by that yet stay known."""
        for pidfd in self._samplers[:]:
            if syscalls.has_ended(pidfd):
                self._samplers.remove(pidfd)
                os.close(pidfd)
            else:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _lasting(code: str, problem: str) -> Message:
    """A failure that another try would meet as well."""
    return {"code": code, "problem": problem, "is_lasting": True}


def main() -> None:
    """Arguments: the configuration, and the descriptors of the anchor or of ``execve``."""
    config = root.load_config(sys.argv[1])
    resume: dict[str, Any] = json.loads(sys.argv[2])
    syscalls.name_process("iod-supervisor")
    syscalls.become_subreaper()
    shared = Shared(*resume["shared"])
    for fd in (*shared.fds(), *([resume["anchor"]] if "anchor" in resume else ())):
        os.set_inheritable(fd, False)  # noqa: FBT003
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    server = Server(config, shared, resume.get("anchor"))
    server.run(is_again="again" in resume)
