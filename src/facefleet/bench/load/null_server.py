"""A server that reads requests and answers at once, to measure a load generator with: ``python -m`` this module.

Prints its port on a line of its own. ``--stall-at S --stall-for S`` stops everything once, S seconds after the first
request, for so long.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BODY = b'{"faces": []}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


class _Null(asyncio.Protocol):
    stall_at = -1.0
    stall_for = 0.0
    first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._need = 0
        self._data = b""

    def data_received(self, data: bytes) -> None:
        kind = type(self)
        if not kind.first:
            kind.first = time.perf_counter()
        if 0 <= kind.stall_at < time.perf_counter() - kind.first:
            kind.stall_at = -1.0
            time.sleep(kind.stall_for)
        if self._need:
            self._need -= len(data)
        else:
            self._data += data
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._need = size - (len(self._data) - end - 4)
            self._data = b""
        if self._need <= 0:
            self._need = 0
            self._transport.write(_ANSWER)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Null, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201  # its parent reads it
    await server.serve_forever()


@contextmanager
def null_server(*, stall_at: float = -1.0, stall_for: float = 0.0) -> Iterator[str]:
    """The URL of one in a process of its own, which ends with the ``with`` block.

    Args:
        stall_at: Seconds after the first request; negative: never.
        stall_for: How long.
    """
    command = [sys.executable, "-m", __name__, "--stall-at", str(stall_at), "--stall-for", str(stall_for)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/null"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stall-at", type=float, default=-1.0)
    parser.add_argument("--stall-for", type=float, default=0.0)
    arguments = parser.parse_args()
    _Null.stall_at, _Null.stall_for = arguments.stall_at, arguments.stall_for
    asyncio.run(_serve())
