"""Asks a daemon of its own everything that ``/v1/openapi.json`` allows, and what it does not.

schemathesis makes the requests and holds each answer against the document: no server error, no
undeclared status, content type or shape. It speaks TCP only, so a bridge leads to the socket.
"""

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from process import daemon

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,negative_data_rejection"
)
WAITING = "phase|events|logs|wait|get_v1_drain"
"""Operations that answer when something happens."""
EXAMPLES = 100
"""Of each operation."""


async def pump(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def fuzz(path):
    """The exit code of the fuzzer."""

    async def lead(reader, writer):
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async with await asyncio.start_server(lead, "127.0.0.1", 0) as bridge:
        url = f"http://127.0.0.1:{bridge.sockets[0].getsockname()[1]}"
        fuzzer = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).with_name("st"), "run", f"{url}/v1/openapi.json"),
            *("--url", url, "--checks", CHECKS, "--max-examples", str(EXAMPLES)),
            *("--exclude-operation-id-regex", WAITING, "--suppress-health-check", "all"),
            *("--no-color", *sys.argv[1:]),
        )
        return await fuzzer.wait()


def main():
    with tempfile.TemporaryDirectory() as name:
        state, runtime = Path(name, "state"), Path(name, "run")
        with daemon(state, runtime) as (client, process):
            code = asyncio.run(fuzz(client.socket_path))
            return code if process.poll() is None else "the daemon has ended"


if __name__ == "__main__":
    sys.exit(main())
