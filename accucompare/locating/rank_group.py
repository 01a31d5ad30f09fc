"""The ranks of one run as ``locate`` uses them: rank 0 decides what is captured, all capture it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from accucompare.devices import DeviceName
from accucompare.errors import CaptureError
from accucompare.locating.golden_code import capture_arguments
from accucompare.places import Place
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.selection import FloatType
from accucompare.text import without_credentials

#: Seconds between two looks at the other ranks.
_PAUSE = 0.1
#: The exit code of a rank that was ended because another one failed.
_TROUBLE = 2


@dataclass
class RankGroup:
    """The processes that torchrun has started, each of which runs the orders of rank 0.

    An order is a command of accucompare. Each rank runs it as a process of its own, since a case
    makes its process group once in a process. They find each other through a port that rank 0
    chooses; these processes themselves talk through the launcher's store.
    """

    rank: int
    ranks: int
    store: Any
    _orders: int = 0

    @classmethod
    def of_launcher(cls) -> RankGroup:
        """The group of this process's launcher."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]
        from torch.distributed.rendezvous import rendezvous

        store, rank, ranks = next(iter(rendezvous("env://")))
        return cls(rank, ranks, PrefixStore("accucompare", store))

    @contextlib.contextmanager
    def led(self) -> Iterator[list[int]]:
        """For rank 0. The list takes the exit code that all ranks end with."""
        codes: list[int] = []
        try:
            yield codes
        finally:
            sys.stdout.flush()  # the launcher ends this process when another one ends
            self._tell({"code": codes[-1] if codes else _TROUBLE})
            self._all_heard()

    def follow(self) -> int:
        """For the other ranks: run what rank 0 orders until it ends. Returns the exit code."""
        while True:
            order = self._next()
            if "code" in order:
                self.store.set(f"heard{self.rank}", "1")
                return int(order["code"])
            self._run(order["arguments"], order["port"])

    def capture(
        self,
        case: str | None,
        out: Place,
        device: DeviceName,
        options: CaptureOptions,
        dtype: FloatType | None,
    ) -> None:
        """Let the ranks capture a case together; arguments as of ``capture_case``. Raises as
        ``order``."""
        self.order(capture_arguments(case, device, out, options, dtype=dtype))

    def order(self, arguments: Sequence[str]) -> None:
        """For rank 0: let every rank run a command of accucompare. Raises CaptureError if a rank
        failed; the others were ended."""
        port = _free_port()
        self._tell({"arguments": arguments, "port": port})
        self._next()
        self._run(arguments, port)
        number = self._orders
        codes = {
            rank: int(self._wait_for(f"{number}/code{rank}").decode()) for rank in range(self.ranks)
        }
        first = self.store.get(f"{number}/failed").decode() if any(codes.values()) else ""
        if first:
            how = codes[int(first)]
            ended = f"was ended by signal {-how}" if how < 0 else f"ended with exit code {how}"
            others = "; the other ranks were ended" if self.ranks > 1 else ""
            raise CaptureError(
                f"{without_credentials(shlex.join(arguments[:2]))}: rank {first} {ended}{others};"
                " what it said is above"
            )

    def _tell(self, order: dict[str, Any]) -> None:
        self.store.set(f"order{self._orders + 1}", json.dumps(order))

    def _next(self) -> dict[str, Any]:
        """The next order; waits for it."""
        self._orders += 1
        order: dict[str, Any] = json.loads(self._wait_for(f"order{self._orders}"))
        return order

    def _wait_for(self, key: str) -> bytes:
        while not self.store.check([key]):
            time.sleep(_PAUSE)
        found: bytes = self.store.get(key)
        return found

    def _run(self, arguments: Sequence[str], port: int) -> None:
        """Run an order here, and end it if another rank fails."""
        number = self._orders
        environment = {
            # such variables are options of the user's command; this one has all of its own
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ACCUCOMPARE_CAPTURE_")
        }
        environment |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        child = subprocess.Popen([sys.executable, "-m", "accucompare", *arguments], env=environment)
        try:
            while child.poll() is None:
                if self.store.check([f"{number}/failed"]):
                    child.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(5)
                    break
                time.sleep(_PAUSE)
        finally:
            if child.poll() is None:
                child.kill()
            code = child.wait()
        if code:
            self.store.compare_set(f"{number}/failed", "", str(self.rank))
        self.store.set(f"{number}/code{self.rank}", str(code))

    def _all_heard(self) -> None:
        """Wait until the others know the code, or have died: the store ends with this process."""
        deadline = time.monotonic() + 10.0
        others = [f"heard{rank}" for rank in range(1, self.ranks)]
        while others and not self.store.check(others) and time.monotonic() < deadline:
            time.sleep(_PAUSE)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port
