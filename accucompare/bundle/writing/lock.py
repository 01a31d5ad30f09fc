"""One capture at a time writes into a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from accucompare.errors import CaptureError
from accucompare.places import Place, Url
from accucompare.storage_errors import cure_of


@contextlib.contextmanager
def locked(directory: Place) -> Iterator[None]:
    """Make a directory and keep other captures out of it. A killed process leaves no lock behind.

    Object storage has no locks: there, ``Uploads`` notices another capture and fails. Raises
    CaptureError if another capture is writing to it, or it cannot be made."""
    if isinstance(directory, Url):
        yield
        return
    import fcntl  # Windows has none

    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except FileExistsError:
        raise CaptureError(
            f"{directory}: exists and is not a directory; choose another place (--out, out=)"
        ) from None
    except OSError as error:
        raise CaptureError(
            f"{error.filename or directory}: cannot be written ({error.strerror or error});"
            f" {cure_of(error)}"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaptureError(
                f"{directory}: another capture is writing to it; wait for its end or choose another"
                " place (--out, out=)"
            ) from None
        except OSError:  # a file system without locks, as on some networks
            pass
        yield
    finally:
        with contextlib.suppress(OSError):
            # explicitly, since forked processes (a DataLoader's workers) hold it too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
