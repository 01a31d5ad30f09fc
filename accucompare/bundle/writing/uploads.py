"""Writing a bundle to object storage: finished files are sent in the background."""

from __future__ import annotations

import errno
import logging
import shlex
import shutil
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from accucompare import places
from accucompare.bundle.format import stamp_of
from accucompare.errors import CaptureError
from accucompare.places import Url, wait

_LOGGER = logging.getLogger(__name__)
#: Bytes a second: a slower upload is given up.
_SLOWEST = 1 << 17
#: How to send a folder by hand, with the storage's own tools.
_COMMANDS = {
    "s3": "aws s3 cp --recursive {folder} {url}",
    "gs": "gcloud storage cp --recursive {folder}/* {url}",
}


class _TakenError(OSError):
    """Another capture has written to the same URL; uploading more would mix their files."""


class Uploads:
    """Sends one rank's files in the order in which they are finished, and removes each here on
    arrival.

    A manifest is sent after the files that it lists, so that an open bundle is whole. Storage has
    no locks: before each manifest, the one at the URL must be the one sent last, or another capture
    writes there."""

    def __init__(self, url: Url, manifest: str) -> None:
        """``url`` is the bundle's, ``manifest`` the manifest's name in it."""
        self.url = url
        # where the capture writes its files, beneath the system's temporary directory (``TMPDIR``)
        self.folder = Path(tempfile.mkdtemp(prefix="accucompare-upload-"))
        # why nothing is sent any more; ``None`` while all is well
        self.failure: OSError | None = None
        self._manifest = manifest
        self._sent: tuple[str, ...] | None = None  # what the storage says of its manifest
        self._queue: deque[str | bytes | None] = deque()  # names of files, manifests, the end
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accucompare-upload", daemon=True)

    def begin(self) -> None:
        """Send the first manifest, to try credentials, bucket and network before the model runs.
        Raises CaptureError if it cannot be sent; nothing is left here then."""
        try:
            self._send((self.folder / self._manifest).read_bytes())
        except BaseException as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise CaptureError(f"{self.url}: cannot be written ({error.strerror})") from None
        self._thread.start()

    def put(self, *paths: Path) -> None:
        """Send files of the folder, and then the manifest as it is now."""
        with self._changed:
            self._queue.extend(path.relative_to(self.folder).as_posix() for path in paths)
            self._queue.append((self.folder / self._manifest).read_bytes())
            self._changed.notify_all()

    def finish(self, hurry: bool) -> None:
        """Wait until all is sent, the manifest last; then remove the folder. ``hurry``: send
        nothing more. Raises CaptureError if not all was sent. The folder keeps the rest, with the
        final manifest, and the message says how to send it."""
        try:
            if hurry:
                self._stop.set()
            with self._changed:
                self._queue.append(None)
                self._changed.notify_all()
            # bounded waits, so that Ctrl-C gets through on every platform
            while self._thread.is_alive():
                self._thread.join(timeout=0.2)
        except KeyboardInterrupt:
            self._stop.set()
            self._thread.join(timeout=1.0)
            _LOGGER.warning("%s", self._kept("interrupted"))
            raise
        if self.failure is None and not self._queue:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        reason = (
            "its thread is gone; was the process forked?"
            if self.failure is None
            else self.failure.strerror
        )
        raise CaptureError(self._kept("interrupted" if hurry else str(reason)))

    def _kept(self, reason: str) -> str:
        """The message for what was not sent."""
        folder, url = shlex.quote(str(self.folder)), shlex.quote(str(self.url))
        if isinstance(self.failure, _TakenError):
            return (
                f"{self.url}: not all was uploaded ({reason}); what was not sent is in"
                f" {self.folder}; capture again to another place (--out, out=)"
            )
        command = _COMMANDS.get(self.url.scheme, "").format(folder=folder, url=url)
        cure = f"to finish: {command}" if command else "copy it there to finish"
        return (
            f"{self.url}: not all was uploaded ({reason}); what is missing is in {self.folder};"
            f" {cure}"
        )

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if not self._outdated(item):
                    self._send(item)
                with self._changed:
                    self._queue.popleft()  # not before it has arrived
        except OSError as error:
            self.failure = error
        except BaseException as error:  # a bug here must reach the user, not vanish with the thread
            self.failure = OSError(errno.EIO, f"{type(error).__name__}: {error}")
        if self.failure is not None and not self._stop.is_set():
            why = self.failure.strerror
            _LOGGER.warning(
                "%s: cannot be written (%s); what is still recorded is kept in %s",
                self.url,
                why,
                self.folder,
            )

    def _next(self) -> str | bytes | None:
        """What is to be sent next; ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue))
            if self._queue[0] is None:
                self._queue.clear()
                return None
            return self._queue[0]

    def _outdated(self, item: str | bytes) -> bool:
        """Whether it is a manifest and another one comes next."""
        with self._changed:
            return (
                isinstance(item, bytes)
                and len(self._queue) > 1
                and isinstance(self._queue[1], bytes)
            )

    def _send(self, item: str | bytes) -> None:
        """Send a file, and remove it here; or a manifest."""
        manifest = self.url / self._manifest
        if self._sent is not None and not self._still_ours(manifest):
            raise _TakenError(
                errno.EBUSY, "another capture has written to it meanwhile", str(self.url)
            )
        if isinstance(item, bytes):
            wait(manifest.begin("pipe_file", after=(item,)), manifest, stop=self._stop)
            self._sent = stamp_of(manifest.described())
            return
        path, target = self.folder / item, self.url / item
        patience = places.PATIENCE + path.stat().st_size / _SLOWEST
        wait(target.begin("put_file", before=(str(path),)), target, patience, self._stop)
        with suppress(OSError):
            path.unlink()

    def _still_ours(self, manifest: Url) -> bool:
        """Whether the manifest at the URL is the one that was sent."""
        try:
            return stamp_of(manifest.described()) == self._sent
        except FileNotFoundError:  # another capture makes room for itself
            return False
