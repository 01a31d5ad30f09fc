"""What the tests of object storage share: an S3 server in a process of its own, and in front of it
one that fails as it is told to.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SERVE = """
import contextlib, logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0)
with contextlib.redirect_stdout(None):
    server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
SECRET = "a-secret-key"
_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


@dataclass(frozen=True)
class Request:
    """What was asked of the server: method, path, and the bytes asked for."""

    method: str
    path: str
    range: str | None = None


@dataclass(frozen=True)
class Fails:
    """An answer with a status, and an error of S3's in its body."""

    status: int
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Drops:
    """The connection ends in the middle of the answer."""


@dataclass(frozen=True)
class Hangs:
    """No answer, until the test is over; a file of this name appears when it begins."""

    sign: Path | None = None


Fault = Fails | Drops | Hangs | None


@dataclass
class Storage:
    """The server as a test sees it.

    Attributes:
        url: of the endpoint.
        fault: what goes wrong with a request.
        requests: those that came.
    """

    url: str
    fault: Callable[[Request], Fault] = lambda request: None
    requests: list[Request] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def fails(self, fault: Fault, times: int = 10**9, method: str = "", path: str = "") -> None:
        """Let requests fail so many times: those with this method, and this in their path."""
        left = [times]

        def of(request: Request) -> Fault:
            if left[0] and request.method.startswith(method) and path in request.path:
                left[0] -= 1
                return fault
            return None

        self.fault = of


@contextmanager
def served() -> Iterator[Storage]:
    """Both servers, until the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    port = int(process.stdout.readline())
    front = ThreadingHTTPServer(("127.0.0.1", 0), _Front)
    front.daemon_threads = True
    storage = Storage(f"http://127.0.0.1:{front.server_address[1]}")
    front.storage, front.behind = storage, port  # type: ignore[attr-defined]
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    try:
        yield storage
    finally:
        storage.over.set()
        front.shutdown()
        front.server_close()
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


class _Front(BaseHTTPRequestHandler):
    """Hands requests on to the server behind, and answers back; or fails."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        try:
            self._answered()
        except OSError:  # one side has gone
            self.close_connection = True

    def _answered(self) -> None:
        storage: Storage = self.server.storage  # type: ignore[attr-defined]
        request = Request(self.command, self.path, self.headers.get("Range"))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        storage.requests.append(request)
        fault = storage.fault(request)
        if isinstance(fault, Hangs):
            if fault.sign is not None:
                fault.sign.touch()
            storage.over.wait()
            self.close_connection = True
        elif isinstance(fault, Fails):
            self._send(
                fault.status, {}, _ERROR.format(code=fault.code, message=fault.message).encode()
            )
        else:
            behind = http.client.HTTPConnection("127.0.0.1", self.server.behind)  # type: ignore[attr-defined]
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            content = answer.read()
            behind.close()
            self._send(answer.status, dict(answer.headers), content, half=isinstance(fault, Drops))

    def _send(
        self, status: int, headers: dict[str, str], content: bytes, half: bool = False
    ) -> None:
        length = headers.get("Content-Length", str(len(content)))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in (
                "content-length",
                "connection",
                "transfer-encoding",
                "date",
                "server",
            ):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if half else content)
        self.close_connection = self.close_connection or half

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""
