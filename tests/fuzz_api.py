"""Asks a daemon of its own everything that ``/v1/openapi.json`` allows, and what it does not.

schemathesis makes the requests and holds each answer against the document: no server error, no
undeclared status, content type or shape. It speaks TCP only, so a bridge leads to the socket.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = 300
"""Of each operation; 10,000 requests in all."""
CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
    )
)
WAITING = "phase|events|wait|get_v1_drain"
"""Operations that answer when something happens."""
_IN_TIME_S = 30.0


async def pump(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def bridge(path):
    """The port of 127.0.0.1 that leads to the socket."""

    async def lead(reader, writer):
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


async def start(directory):
    """A daemon over simulated jobs."""
    command = (sys.executable, "-m", "iodaemon.cli", "daemon", "--backend", "simulated")
    places = ("--state-dir", f"{directory}/state", "--socket", f"{directory}/run/iod.sock")
    daemon = await asyncio.create_subprocess_exec(
        *command, *places, "--config", "/dev/null", stderr=subprocess.DEVNULL
    )
    async with asyncio.timeout(_IN_TIME_S):
        while not (directory / "run/iod.sock").exists():
            await asyncio.sleep(0.05)
    return daemon


async def fuzz(directory):
    daemon = await start(directory)
    try:
        url = f"http://127.0.0.1:{await bridge(directory / 'run/iod.sock')}"
        fuzzer = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).with_name("st"), "run", f"{url}/v1/openapi.json"),
            *("--url", url, "--checks", CHECKS, "--max-examples", str(EXAMPLES)),
            *("--exclude-operation-id-regex", WAITING, "--suppress-health-check", "all"),
            *("--no-color", *sys.argv[1:]),
        )
        return await fuzzer.wait() or (daemon.returncode is not None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.terminate()
        await daemon.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(asyncio.run(fuzz(Path(directory))))
