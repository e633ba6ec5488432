"""The space that ``iod submit`` asks for, and what is copied into it and out of it.

    --scratch 200G [--tier fast] [--scratch-fallback slow|wait|fail]
    --fast 100G --input DIR --output DIR [--output-size S] [--data-size S]

``--fast`` leaves the choice of the tier to the admission rule. The size of what is copied in is
measured here and now, with the submitter's own rights. ``--output`` is the directory that the space
is copied to. For a job without space it is the file of its standard output, as ``--stdout`` or
``-o`` is for any job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from iodaemon.api.model import JobOptions, ScratchOptions
from iodaemon.cli.failure import UsageError, nearest, size_bytes
from iodaemon.cli.request import above_nothing, absolute
from iodaemon.errors import RequestError

SCRATCH_WORDS: Final = (
    *("scratch", "fast", "tier", "scratch-fallback", "input", "output-on"),
    *("output-size", "data-size"),
)
_FALLBACKS: Final = ("slow", "wait", "fail")
_WHEN: Final = ("success", "always")
_NOTHING_DONE: Final = "nothing was submitted"


def check_words(words: Mapping[str, str]) -> None:
    """Refuse what means nothing; nothing is looked at on any disk.

    Raises:
        UsageError: names the option.
    """
    for name in ("scratch", "fast", "output-size", "data-size"):
        if name in words:
            _size(f"--{name}", words[name])
    for name, choices in (("scratch-fallback", _FALLBACKS), ("output-on", _WHEN)):
        if name in words and words[name] not in choices:
            hint = ", ".join(choices)
            raise UsageError(f"--{name}: no {words[name]!r}{nearest(words[name], choices, hint)}")
    if "scratch" in words and "fast" in words:
        raise UsageError("--scratch and --fast both ask for space: write one of them")
    if "fast" in words and "tier" in words:
        raise UsageError("--fast leaves the tier to iodaemon: write --scratch with --tier")


def scratch_options(words: Mapping[str, str], cwd: str) -> JobOptions:
    """What was said of space, in base units; nothing where nothing was.

    Args:
        words: by option, without dashes.
        cwd: where the job starts; paths are relative to it.

    Raises:
        UsageError: a part of it means nothing, or has no space to go with.
        RequestError: the input is not there, or may not be read.
    """
    said = [name for name in SCRATCH_WORDS if name in words]
    if not said:
        return JobOptions()
    check_words(words)
    size = words.get("scratch", words.get("fast"))
    if size is None:
        raise UsageError(f"--{said[0]} needs space to go with: write --scratch SIZE or --fast SIZE")
    asked = ScratchOptions(size_bytes=_size("--scratch", size))
    if "tier" in words:
        asked["tier"] = words["tier"]
    if "scratch-fallback" in words:
        asked["fallback"] = words["scratch-fallback"]
    if "input" in words:
        asked["input_path"] = path = _path("--input", words["input"], cwd)
        asked["input_bytes"] = measure(path)
    if (results := results_path(words, cwd)) is not None:
        asked["output_path"] = results
    elif "output-on" in words:
        raise UsageError("--output-on needs a directory of results: write --output DIR")
    if "output-on" in words:
        asked["output_on"] = words["output-on"]
    if "output-size" in words:
        asked["output_bytes"] = _size("--output-size", words["output-size"])
    if "data-size" in words:
        asked["data_bytes"] = _size("--data-size", words["data-size"])
    return JobOptions(scratch=asked)


def has_space(words: Mapping[str, str]) -> bool:
    """Whether space is asked for: then ``--output`` is a directory."""
    return "fast" in words or "scratch" in words


def results_path(words: Mapping[str, str], cwd: str) -> str | None:
    """The directory that results are copied to; None: there is none, ``--output`` is a file.

    Raises:
        UsageError: it is no name of a directory.
        RequestError: a file is in the way.
    """
    text = words.get("output")
    if text is None or not has_space(words):
        return None
    if "%j" in text:
        raise UsageError(
            "--output: with --scratch or --fast it is a directory, in whose name %j is nothing; "
            "-o FILE names the file of standard output"
        )
    path = _path("--output", text, cwd)
    _check_output(path)
    return path


def _check_output(path: str) -> None:
    """Refuse where a directory could never be made: a file is there, or on the way."""
    place = path
    while not os.path.lexists(place) and place != "/":
        place = os.path.dirname(place)
    if os.path.lexists(place) and not os.path.isdir(place):
        raise RequestError(f"--output: {place} is no directory; {_NOTHING_DONE}")


def measure(path: str) -> int:
    """Add up the bytes of the files in a directory; links have none.

    Raises:
        RequestError: it is no directory, or something in it may not be read.
    """
    total, waiting = 0, [path]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
    except OSError as error:
        where = error.filename or path
        raise RequestError(f"--input: {where}: {error.strerror}; {_NOTHING_DONE}") from error
    return total


def _path(option: str, text: str, cwd: str) -> str:
    if not text:
        raise UsageError(f"{option}: an empty path; name a directory")
    return absolute(cwd, text)


def _size(option: str, text: str) -> int:
    return int(above_nothing(option, text, size_bytes(option, text)))
