"""What install has made, kept in one file, so that removing takes that and no more."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from iodaemon.errors import RequestError
from iodaemon.install.step import Item

VERSION: Final = 1
"""Of the file's form."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content.

    Attributes:
        version: of its form.
        installed: the digest of each file and link, by path.
        folders: directories that were not there before, outer ones first.
        user: the daemon's user was not there before.
        running: names the program as it was when its services were last started; empty: since
            then something has changed, or they have not been started.
    """

    version: int = VERSION
    installed: Mapping[str, str] = {}
    folders: tuple[str, ...] = ()
    user: bool = False
    running: str = ""


def parse_record(item: Item, path: str) -> Record:
    """The record in this file; an empty one where there is none.

    Raises:
        RequestError: it is not ours, or of a later iodaemon.
    """
    if item.kind == "nothing":
        return Record()
    try:
        record = msgspec.json.decode(item.text, type=Record)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RequestError(
            f"{path} does not say what was installed ({error}): restore it or move it away"
        ) from error
    if record.version != VERSION:
        raise RequestError(
            f"{path} was written by a later iodaemon (form {record.version}, this one knows "
            f"{VERSION}): use that one"
        )
    return record


def record_text(record: Record) -> str:
    """The file's text."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"


def digest(item: Item) -> str:
    """Tells whether it is still what was put there."""
    return hashlib.sha256(f"{item.kind}\0{item.text}".encode()).hexdigest()
