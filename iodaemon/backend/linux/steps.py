"""What a shim does around a job's command: its directories on tier disks, and staging.

Directories are made before the command may run. Input is copied in by the job's first process
itself, before it becomes the command; what is left is copied out by a process like it, once all
others have ended. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Final, NoReturn

from iodaemon.backend.linux import launch as launching
from iodaemon.backend.linux import scratch, stage
from iodaemon.backend.linux.freezer import Freezer
from iodaemon.backend.linux.manifest import Manifest, is_whole, open_manifest, try_lock
from iodaemon.backend.linux.protocol import STAGE_FILE, Message, encode, write_json
from iodaemon.fault import reach

STAGE_FAILED: Final = 74
"""EX_IOERR of sysexits.h: the exit code of a job of which a step of staging could not be done."""
_STAGING: Final = b"staging\n"
_CHUNK_BYTES: Final = 65536
_HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""A step ends by these, as a command would; its halves go first."""


class _ToldError(BaseException):
    """The step was told to end; what it has only half done goes first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _end(number: int, _frame: object) -> NoReturn:
    for each in _HEARD:
        signal.signal(each, signal.SIG_IGN)
    raise _ToldError(number)


class News:
    """What a step says over a pipe, line by line: how far it is, and why it failed.

    Attributes:
        fd: the end to read.
        problem: empty while nothing has failed.
    """

    def __init__(
        self, fd: int, directory: str, told: dict[str, Message], unread: bytes = b""
    ) -> None:
        """Nothing is said yet.

        Args:
            fd: as above.
            directory: of the attempt.
            told: gets the last word of each step.
            unread: what it has said already.
        """
        self.fd = fd
        self.problem = ""
        self._told = told
        self._directory = directory
        self._unread = b""
        self._split(unread)

    def hear(self) -> bool:
        """Take in what there is; False, and closed, once nothing will come any more."""
        data = os.read(self.fd, _CHUNK_BYTES)
        self._split(data)
        if not data:
            os.close(self.fd)
        return bool(data)

    def _split(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            word = json.loads(line)
        except ValueError:  # the command could not be run after all
            self.problem = line.decode(errors="replace").partition(" ")[2]
            return
        if not isinstance(word, dict):
            return
        if "failed" in word:
            self.problem = str(word["failed"])
            return
        self._told[str(word.get("step"))] = word
        with contextlib.suppress(OSError):  # nobody will miss one
            write_json(os.path.join(self._directory, STAGE_FILE), word, durable=False)


class Steps:
    """Those of one attempt."""

    def __init__(self, key: str, directory: str, launch: launching.Launch) -> None:
        """Plan.

        Args:
            key: of the attempt.
            directory: of the attempt.
            launch: its ``scratch`` (of each directory ``path`` and ``size``) and ``staging``
                (``input``, ``output``, ``on``: ``success`` or ``always``), if any.
        """
        self._key = key
        self._directory = directory
        self._told: dict[str, Message] = {}
        self._earlier: list[Message] = []
        self._shares = scratch.plan(key, launch.get("scratch") or [])
        staging: Message = (launch.get("staging") or {}) if self._shares else {}
        self._input: str | None = staging.get("input")
        self._output: str | None = staging.get("output")
        self._is_always = staging.get("on") == "always"
        self.launch: launching.Launch = launch
        if told := scratch.environment_of(self._shares):
            self.launch = {**launch, "environment": {**launch["environment"], **told}}

    def make(self) -> Message | None:
        """Make the directories; what is in the way, as a status: of a disk, or the job's own.

        A job is held back by the latter.
        """
        if not self._shares:
            return None
        output = None
        if self._output is not None:
            output = {
                "path": self._output,
                "on": "always" if self._is_always else "success",
                "has_input": self._input is not None,
                **{name: self.launch.get(name) for name in ("min_uid", "umask")},
            }
        uid = self.launch["uid"] if launching.has_submitter(self.launch) else os.geteuid()
        if type(uid) is not int or uid < (self.launch.get("min_uid") or 0):
            text = f"no scratch space is given to uid {uid!a}"
            return {"never_ran": text, "exit_code": None, "of_user": True, "holds": True}
        try:
            scratch.make(self._directory, self._shares, uid, output)
        except scratch.DiskError as error:  # none that comes later need meet it
            text, disk = str(error), error.disk
            return {"never_ran": text, "exit_code": None, "of_user": True, "disk": disk}
        except scratch.ScratchError as error:
            text = f"scratch space cannot be had: {error}"
            return {"never_ran": text, "exit_code": None, "of_user": True, "holds": True}
        return None

    # -- in the job's first process ---------------------------------------------------------------

    def open_books(self) -> dict[str, int]:
        """Manifests, by step, while this process may still open them."""
        if self._input is None:
            return {}
        return {"in": open_manifest(self._directory, "in")}

    def copy_in(self, books: dict[str, int], news: int) -> None:
        """Copy the input in; on failure say why and exit. This process is the user by now.

        Without its shim it goes no further: nobody would copy out what the command makes. The
        directories, which root made, get the user's group: on some disks (grpid) all in them
        has it.
        """
        for path in scratch.paths_of(self._shares):
            with contextlib.suppress(OSError):
                os.chown(path, -1, os.getegid())
        if self._input is None:
            return
        os.write(news, _STAGING)
        self._run(news, lambda: self._copy_in(books["in"], news))
        if not _is_heard(news):
            os._exit(STAGE_FAILED)
        for fd in books.values():
            os.close(fd)

    def _copy_in(self, book: int, news: int) -> None:
        paths = scratch.paths_of(self._shares)
        sizes = [share["size"] for share in self._shares]
        targets = list(map(stage.Target, paths, sizes))
        assert self._input is not None
        stage.copy_in(self._input, targets, Manifest(book), lambda word: _tell(news, word))
        reach("stage.in_done")

    # -- in the shim ------------------------------------------------------------------------------

    def news_of(self, data: bytes, fd: int) -> News | None:
        """The news that begin with these bytes; None: they are something else."""
        if not data.startswith(_STAGING):
            return None
        return News(fd, self._directory, self._told, data.removeprefix(_STAGING))

    def wants_out(self, *, is_success: bool) -> bool:
        """True where what the job left is to be copied out: never what came only in part."""
        has_come = self._input is None or is_whole(self._directory, "in")
        return self._output is not None and has_come and (is_success or self._is_always)

    def begin_out(self, freezer: Freezer) -> tuple[int, News]:
        """Fork what copies it out.

        Returns:
            Its number, and its news.

        Raises:
            OSError: it cannot be.
        """
        path = os.path.join(self._directory, STAGE_FILE)
        write_json(path, {"step": "out"}, durable=True)
        if (word := self._told.pop("out", None)) is not None:
            self._earlier.append(word)
        reach("stage.out_begun")
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            pid, is_inside = freezer.fork(self._key)
            if pid == 0:
                enter = None if is_inside else lambda: freezer.enter(self._key)
                self._be_the_step(enter, write)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        return pid, News(read, self._directory, self._told)

    def told(self, *, has_gone: bool) -> Message:
        """For the status: what was copied, and what that took; empty: nothing was.

        Args:
            has_gone: whether all that was to be copied out is.
        """
        tries = [*self._earlier, *self._told.values()]
        if not tries:
            return {}
        last = {str(word.get("step")): word for word in tries}
        came, went = (
            word.get("bytes", 0) - word.get("left_bytes", 0)
            for word in (last.get(step, {}) for step in ("in", "out"))
        )
        took = [word.get("took_s") for word in tries]
        staged: Message = {
            "came_bytes": came,
            "went_bytes": went,
            "moved_bytes": sum(word.get("moved_bytes", 0) for word in tries),
            "took_s": None if None in took else sum(took),
            "others": sum(word.get("others", 0) for word in last.values()),
            "has_come": None if self._input is None else is_whole(self._directory, "in"),
            "has_gone": None if self._output is None else has_gone,
        }
        return {"staged": staged}

    def why_kept(self, problem: str) -> str:
        """For the status, where copying out failed."""
        return f"what the job left was not copied to {self._output}: {problem}"

    def _be_the_step(self, enter: Callable[[], None] | None, news: int) -> NoReturn:
        """The forked child: becomes the user, copies, exits."""
        signal.set_wakeup_fd(-1)
        try:
            launching.become(self.launch, enter)
            books = [open_manifest(self._directory, step) for step in ("in", "out")]
            account = launching.find_submitter(self.launch)
            if account is not None:
                launching.be_user(account)
            self._go_home()
            self._run(news, lambda: self._copy_out(books, news))
            os._exit(0)
        except (OSError, launching.LaunchError) as error:
            os.write(news, encode({"failed": str(error)}))
        finally:
            os._exit(STAGE_FAILED)

    def _go_home(self) -> None:
        """Where the command ran; whether that is still there matters to a relative path alone."""
        try:
            os.chdir(self.launch["cwd"])
        except OSError:
            if not os.path.isabs(self._output or ""):
                raise

    def _copy_out(self, books: list[int], news: int) -> None:
        if not try_lock(books[1]):
            raise stage.StageError("it is being copied just now")
        came, manifest = map(Manifest, books)
        assert self._output is not None
        paths = scratch.paths_of(self._shares)
        output = stage.Output(self._output, self._shares[0]["name"])
        stage.copy_out(paths, output, came, manifest, lambda word: _try_to_tell(news, word))
        reach("stage.out_done")

    def _run(self, news: int, work: Callable[[], None]) -> None:
        try:
            for number in _HEARD:
                signal.signal(number, _end)
            work()
            for number in _HEARD:
                signal.signal(number, signal.SIG_DFL)
        except _ToldError as told:
            signal.signal(told.number, signal.SIG_DFL)
            os.kill(os.getpid(), told.number)
        except BaseException as error:  # noqa: BLE001 - nothing may go on in its place
            text = str(error) if isinstance(error, OSError | stage.StageError) else repr(error)
            with contextlib.suppress(OSError):
                os.write(news, encode({"failed": text}))
            os._exit(STAGE_FAILED)


def _tell(news: int, word: Message) -> None:
    os.write(news, encode(word))


def _try_to_tell(news: int, word: Message) -> None:
    with contextlib.suppress(OSError):  # the shim is gone: the step goes on
        _tell(news, word)


def _is_heard(news: int) -> bool:
    """Whether somebody is left who reads what is said there: else poll(2) says POLLERR."""
    poll = select.poll()
    poll.register(news, 0)
    return not poll.poll(0)
