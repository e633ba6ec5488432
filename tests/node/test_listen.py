"""Where a keeper listens: what the last one left, and what another one has."""

import socket
import threading

import pytest

from iodaemon.backend.linux.connection import listen


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "keeper.sock")


@pytest.fixture
def another(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        yield listener


def answers(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
    return True


def test_a_socket_that_nobody_listens_at_is_replaced(path, another):
    another.close()

    with listen(path):
        assert answers(path)


def test_a_socket_that_a_shim_has_a_moment_longer_than_its_keeper_is_waited_for(path, another):
    timer = threading.Timer(0.2, another.close)
    timer.start()

    with listen(path):
        assert answers(path)
    timer.join()


def test_another_that_listens_there_keeps_its_socket_however_many_wait_for_it(path, another):
    with pytest.raises(OSError, match="a keeper runs already"):
        listen(path)

    connection, _ = another.accept()
    connection.close()
