"""What is small when it is submitted and large when it is passed on, or the other way round."""

import json

import pytest
from builders import platform

from iodaemon.daemon.submission import decode_submission
from iodaemon.errors import RequestError

MACHINE = platform(2, 4)


def submit(environment=None, **fields):
    body = {"jobs": [{"command": ["x"], **fields}], "environment": environment or {}}
    return decode_submission(json.dumps(body).encode(), MACHINE)


def refusal(environment=None, **fields):
    with pytest.raises(RequestError) as caught:
        submit(environment, **fields)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- paths that grow -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stdout", "stderr", "cwd"])
@pytest.mark.parametrize("path", ["/" + "%j" * 216, "/" + "%j" * 3_000_000, "/" + "ä" * 2048])
def test_a_path_is_no_longer_than_the_kernel_takes_once_it_has_the_number(name, path):
    told = refusal(**{name: path})

    assert told.startswith(f"{name} is longer than the 4095 bytes of a path")


@pytest.mark.parametrize("name", ["stdout", "stderr", "cwd"])
def test_the_longest_path_is_taken(name):
    for path in ("/" + "%j" * 215, "/" + "a" * 4094):
        assert path == getattr(submit(**{name: path}).jobs[0], name)
