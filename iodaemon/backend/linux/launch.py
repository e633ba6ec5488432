"""The job's child, between fork and exec: becomes what was asked, then runs the command.

Every step that fails is named, so that the submitter reads "the working directory /x is gone"
and not an errno. Standard library only.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from typing import Any, Final, NoReturn

from iodaemon.backend.linux.account import (
    Account,
    AccountError,
    NoAccountError,
    completed,
    create_output,
    find_account,
    forget_protection,
    take_on,
)
from iodaemon.backend.linux.output_file import open_output, problem_of
from iodaemon.backend.linux.privacy import hide_memory, join_keyring, leave_keyring, sign_in
from iodaemon.backend.linux.process import prefer_memory_nodes

Launch = dict[str, Any]
"""What to run: command, cwd, environment, umask, cpus, memory_nodes, stdout, stderr, output,
open_files (soft limit), uid; fence, memory_bytes and processes, which are its cgroup's; scratch
and staging, which are its shim's (``steps``); and from the keeper min_uid: None where it cannot
run jobs as others.
"""

NOT_FOUND: Final = 127
NOT_RUNNABLE: Final = 126


class LaunchError(Exception):
    """The command cannot be run; ``exit_code`` as a shell would give it.

    None: whom it is to be run as does not exist now.
    """

    def __init__(self, problem: str, exit_code: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.exit_code = exit_code


def become(launch: Launch, enter: Callable[[], None] | None) -> None:
    """Turn the calling process into the job, but for its user, its files and exec.

    Order: cgroup first (what is forked later is in it), own session, affinity, memory policy,
    mask, limits. Signals are as the keeper has them: none is blocked, none ignored.

    Args:
        launch: what.
        enter: moves the process into the job's cgroup; None: it is there.

    Raises:
        LaunchError: a step failed that will fail again.
        OSError: a step failed that may work later (the cgroup).
    """
    if enter is not None:
        enter()
    os.setsid()
    _confine(launch)
    os.umask(launch["umask"])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (launch["open_files"], hard))


def execute(launch: Launch) -> NoReturn:
    """Exec the command on the job's own PATH, with its environment and no other.

    Raises:
        LaunchError: it does not exist or cannot be run.
    """
    command: list[str] = launch["command"]
    environment: dict[str, str] = launch["environment"]
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - the whole point
    except OSError as error:
        raise _exec_problem(command[0], environment, error) from error


def _exec_problem(name: str, environment: dict[str, str], error: OSError) -> LaunchError:
    if error.errno == errno.ENOENT:
        where = "" if "/" in name else f" in PATH ({environment.get('PATH', 'not set')})"
        if os.path.exists(name) and "/" in name:
            return LaunchError(
                f"{name}: the interpreter its first line names does not exist", NOT_FOUND
            )
        return LaunchError(f"{name}: no such command{where}", NOT_FOUND)
    if error.errno == errno.ENOEXEC:
        return LaunchError(
            f"{name}: not a program and without an interpreter line; add '#!/bin/sh'", NOT_RUNNABLE
        )
    return LaunchError(f"{name}: cannot be run ({error.strerror})", NOT_RUNNABLE)


def _confine(launch: Launch) -> None:
    try:
        os.sched_setaffinity(0, launch["cpus"])
    except OSError as error:
        raise LaunchError(
            f"CPUs {launch['cpus']} cannot be used ({error.strerror}); are they online?",
            NOT_RUNNABLE,
        ) from error
    prefer_memory_nodes(launch["memory_nodes"])


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise LaunchError(
            f"the working directory {path} cannot be entered ({error.strerror})", NOT_RUNNABLE
        ) from error


def has_submitter(launch: Launch) -> bool:
    """True where the job is run as somebody else than its keeper."""
    return launch["min_uid"] is not None


def be_the_submitter(launch: Launch, account: Account | None) -> Launch:
    """Be the user who submitted the job, enter its directory, open its files.

    The job's own output file is made while that is still possible; all else is done as the user.

    Args:
        launch: what.
        account: of ``find_submitter``.

    Returns:
        The launch with the environment that such a user has.

    Raises:
        LaunchError: a file is not the user's to open.
        OSError: the kernel refuses what would make it the user alone.
    """
    output = None
    if account is not None:
        output = None if launch["stdout"] else create_output(launch["output"], account)
        be_user(account)
        launch = {**launch, "environment": completed(launch["environment"], account)}
    _change_directory(launch["cwd"])
    _open_files(launch, output)
    return launch


def be_user(account: Account) -> None:
    """Be this user and nobody else, with nothing of the keeper's.

    Raises:
        OSError: the kernel refuses what would make it the user alone.
    """
    forget_protection()
    leave_keyring()
    sign_in(account.uid)
    take_on(account)
    hide_memory()
    join_keyring()


def find_submitter(launch: Launch) -> Account | None:
    """Whom to become; None: the user that this process is already. May take for ever.

    Raises:
        LaunchError: there is no such user, or none to run jobs as.
    """
    if not has_submitter(launch):
        return None
    try:
        return find_account(launch.get("uid"), launch["min_uid"])
    except NoAccountError as error:
        raise LaunchError(str(error), None) from error
    except AccountError as error:
        raise LaunchError(str(error), NOT_RUNNABLE) from error


def _open_files(launch: Launch, output: int | None) -> None:
    """Standard input is empty; output goes to the files asked for, else to the job's own file."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = _open_output(launch["stdout"] or launch["output"]) if output is None else output
    err = out if launch["stderr"] is None else _open_output(launch["stderr"])
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)


def _open_output(path: str) -> int:
    try:
        return open_output(path)
    except OSError as error:
        raise LaunchError(
            f"the output file {path} cannot be written ({problem_of(error)})", NOT_RUNNABLE
        ) from error
