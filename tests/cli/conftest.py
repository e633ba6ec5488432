"""The fake daemon and a way to call the command line as a user does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon

from iodaemon.cli import main


@dataclass
class Result:
    """What one call of ``iod`` came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Iod:
    """``iod`` in this process, with its socket set."""

    def __init__(self, socket_path: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.socket_path = socket_path
        self.capsys = capsys

    def __call__(self, *words: str) -> Result:
        self.capsys.readouterr()
        code = main(["--api", self.socket_path, *words])
        captured = self.capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def fails(self, *words: str) -> tuple[int, str]:
        """The exit code and the one line on standard error; nothing on standard output."""
        result = self(*words)
        assert result.out == ""
        assert result.err.count("\n") == 1, result.err
        assert result.err.startswith("iod: ")
        return result.code, result.err[len("iod: ") : -1]


@pytest.fixture
def socket_path(tmp_path: Path) -> str:
    return str(tmp_path / "iod.sock")


@pytest.fixture
def daemon(socket_path: str) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(socket_path)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def iod(
    socket_path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iod:
    monkeypatch.delenv("IOD_API_SOCKET", raising=False)
    return Iod(socket_path, capsys)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
