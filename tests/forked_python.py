"""``python SCRIPT …`` in a fork of a process that has imported torch: ``forked_python.py SOCKET
SCRIPT …``, for commands that run scripts.

The fork has the directory, environment, streams and exit code of a fresh process, and our way in is
set up as our ``sitecustomize`` would."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def ask(path: str, argv: list[str]) -> int:
    """What the command starts: let a script be run, and end as it does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [b"."], [1, 2])
        server.sendall(json.dumps([argv, os.getcwd(), dict(os.environ)]).encode() + b"\n")
        code = int(server.makefile().readline())
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


_BOOT = """
import os
if "ACCUCOMPARE_SCRIPT" in os.environ:
    from accucompare.scripts.boot import sitecustomize
    sitecustomize._install()
"""


def listen(path: str) -> None:
    """Run scripts in the background, as long as the tests run."""
    import select

    from tests import forkserver
    from tests.scripts.forked import PROGRAM

    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    either = select.poll()
    either.register(server, select.POLLIN)
    either.register(forkserver.requests, 0)  # for its end, with that of the tests
    while either.poll()[0][0] == server.fileno():
        connection, _ = server.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _, streams, _, _ = socket.recv_fds(connection, 1, 2)
            argv, folder, variables = json.loads(connection.makefile().readline())
            child = os.fork()
            if not child:
                connection.close()
                argv = ["-c", "", *argv]
                forkserver.become(_BOOT + PROGRAM, argv, folder, variables, streams)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            connection.sendall(f"{code}\n".encode())
            os._exit(0)
        connection.close()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
