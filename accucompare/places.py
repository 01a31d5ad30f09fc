"""Where a bundle is: a directory, or a URL of object storage; only using a URL imports fsspec.

A directory is a ``pathlib.Path``; a URL is a ``Url``, since a Path would merge its slashes and show
its credentials."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accucompare.errors import BundleError, UsageError
from accucompare.storage_errors import EXTRAS, NoAnswerError, as_os_error
from accucompare.text import with_article, without_credentials

if TYPE_CHECKING:
    import threading
    from concurrent.futures import Future

#: Seconds that a request may take, with all retries of its library.
PATIENCE = 120.0
#: Seconds between two looks at whether a request has been given up.
_LOOK = 0.1
#: Seconds before HTTP retries after a failed connection; other libraries retry themselves.
_WAITS = (0.2, 0.8, 2.0)

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_CHAINED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://[^:]*)?::.*://", re.DOTALL)
_LOCAL = ("file", "local")
_READ_ONLY = ("http", "https")
_COMMON = (*_READ_ONLY, *EXTRAS, "memory")

#: What the storage says of an object, and its content if that is short enough.
ServerAnswer = tuple[dict[str, Any], bytes | None]


@dataclass(frozen=True)
class Url:
    """A place in object storage. ``str`` and ``repr`` leave credentials out; ``whole`` has them."""

    scheme: str
    path: str  # bucket or host, and the rest, without a slash at its end
    user: str = field(default="", repr=False)  # ``user:password@``, if given
    # ``?…`` such as a signature, if given; each file below gets it, too
    query: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str | Path) -> Url:
        return replace(self, path=f"{self.path}/{name}")

    @property
    def whole(self) -> str:
        """The URL with its credentials: for fsspec, never for people."""
        return f"{self.scheme}://{self.user}{self.path}{self.query}"

    def hide(self, text: str) -> str:
        """A text without what may be secret in this URL or in any other."""
        user = self.user.rstrip("@")
        for secret in filter(None, (user, user.partition(":")[2], self.query.lstrip("?"))):
            text = text.replace(secret, "…")
        return without_credentials(text)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        return replace(self, path=self.path.rpartition("/")[0] or self.path)

    @property
    def parents(self) -> list[Url]:
        """The places around it, the nearest first."""
        found, place = [], self
        while place.parent != place:
            place = place.parent
            found.append(place)
        return found

    @property
    def read_only(self) -> bool:
        return self.scheme in _READ_ONLY

    def resolve(self) -> Url:
        """Itself: there are no links."""
        return self

    def absolute(self) -> Url:
        return self

    def is_file(self) -> bool:
        """Whether the object exists. Unreadable counts as missing: S3 returns 403 for missing keys
        without list permission. BundleError if the storage does not answer."""
        try:
            self.call("info")
        except (FileNotFoundError, PermissionError):
            return False
        except OSError as error:
            raise BundleError(f"{self}: cannot be read ({error.strerror})") from None
        return True

    def read(self, most: int) -> bytes:
        """A small object, whole; OSError if missing, unreadable, or larger than ``most`` bytes."""
        return self.content_of(self.begin_read(most), most)

    def content_of(self, asked: Future[ServerAnswer], most: int) -> bytes:
        """The content that ``begin_read`` asked for. Errors as ``read``."""
        try:
            content = wait(asked, self)[1]
        except OSError:
            self.call("cat_file", start=0, end=1)  # its error says more than a description's
            raise
        if content is None:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB; refused", str(self))
        return bytes(content)

    def begin_read(self, most: int) -> Future[ServerAnswer]:
        """Begin to ask for an object's description, and for its content up to ``most`` bytes."""
        return self._begin(lambda system, path: _described_and_read(system, path, most))

    def described(self) -> dict[str, Any]:
        """An object's description: its size, and when it was written. Errors as ``call``."""
        try:
            found: dict[str, Any] = self.call("info")
        except OSError:
            self.call("cat_file", start=0, end=1)
            raise
        if found.get("type") == "directory":
            raise FileNotFoundError(errno.ENOENT, "there is no such object", str(self))
        return found

    def call(self, name: str, **options: Any) -> Any:
        """Call fsspec's method of this name for this URL.

        Raises:
            OSError: any failure, with words for people in ``strerror``: FileNotFoundError if the
                object or bucket is missing, PermissionError if access is refused, NoAnswerError if
                the storage does not answer within ``PATIENCE`` seconds.
        """
        return wait(self.begin(name, **options), self)

    def begin(
        self,
        name: str,
        *,
        before: tuple[Any, ...] = (),
        after: tuple[Any, ...] = (),
        **options: Any,
    ) -> Future[Any]:
        """Begin ``call``; ``wait`` gives its result. Without asyncio support in the library, the
        call is done at once. ``before``, ``after``: positional arguments before and after the path;
        libraries name them differently."""
        return self._begin(
            lambda system, path: _called(system, name, *before, path, *after, **options)
        )

    def _begin(self, work: Callable[[Any, str], Coroutine[Any, Any, Any]]) -> Future[Any]:
        import asyncio  # slow to import
        from concurrent.futures import Future

        try:
            system, path = _system(self)
            if system.async_impl:
                return asyncio.run_coroutine_threadsafe(
                    _again(work, system, path) if self.read_only else work(system, path),
                    system.loop,
                )
            return _done_at_once(work(system, path))
        except Exception as error:  # libraries of many makers, each with its own errors
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def below(self) -> dict[str, int]:
        """The sizes of all objects below, by names: ``rank0/step0.npz``. Errors as ``call``."""
        try:
            system, path = _system(self)
        except Exception as error:
            raise as_os_error(error, str(self), self.hide) from None
        system.invalidate_cache()
        try:
            found = self.call("find", detail=True)
        except FileNotFoundError:
            return {}
        system.invalidate_cache()
        prefix = system._strip_protocol(path).rstrip("/") + "/"
        return {
            name.removeprefix(prefix): int(found[name].get("size") or 0)
            for name in sorted(found)
            if name.startswith(prefix)
        }


#: What a bundle is read from or written to.
Place = Path | Url


def place_of(given: str | Place) -> Place:
    """The directory or URL that a user means; UsageError if it is invalid."""
    if not isinstance(given, Url):
        given = _path_or_text(given)
    if isinstance(given, Path):
        _refuse_one_slash(given)
        return _without_circle(given)
    if not isinstance(given, str):
        return given
    if _CHAINED.match(given):
        raise UsageError(
            f"{without_credentials(given)}: chained URLs (::) are not taken; name the storage"
            " itself"
        )
    match = _URL.fullmatch(given)
    if match is None:
        _refuse_one_slash(Path(given))
        return _without_circle(Path(given))
    scheme, rest = match[1].lower(), match[2]
    if scheme in _LOCAL:
        return Path(rest)
    rest, mark, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    shown = f"{host}{slash}{path}".rstrip("/")
    if not shown.strip("/"):
        raise UsageError(f"{scheme}://: names no place; write {scheme}://BUCKET/BUNDLE")
    if user and scheme in EXTRAS:
        cure = "give credentials by the environment, or as the storage's own tools take them"
        raise UsageError(f"{scheme}://{shown}: user:password@ is not for {scheme}://; {cure}")
    return Url(
        scheme,
        shown if host or scheme != "memory" else f"/{shown.lstrip('/')}",
        user + at,
        mark + query,
    )


def _without_circle(path: Path) -> Path:
    """The same path; UsageError if its links lead in a circle."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(
                f"{path}: is a link that leads in a circle; name another place"
            ) from None
    return path


def _refuse_one_slash(path: Path) -> None:
    """Raise UsageError for ``s3:/bucket``, unless there is such a directory."""
    first, *rest = path.parts or ("",)
    if first.rstrip(":") in _COMMON and first.endswith(":") and not os.path.lexists(first):
        meant = without_credentials(f"{first}//{'/'.join(rest)}")
        raise UsageError(
            f"{meant}: was given with one slash, and a URL has two; in Python give it as text, for"
            " a Path merges them"
        )


def _path_or_text(given: object) -> str | Path:
    """A path as given; UsageError if it is none, or invalid for the system."""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise UsageError(
            f"{given!r}: is {with_article(type(given).__name__)}; give the path of a file or"
            " directory, as a"
            " str or a Path"
        )
    if "\0" in os.fspath(given):
        raise UsageError(f"{given!r}: holds a null character, which no path may; give another")
    return given if isinstance(given, (str, Path)) else Path(given)


def local(given: str | Path) -> Path:
    """A path of this machine, for everything but bundles; UsageError if it is a URL, or no path."""
    given = _path_or_text(given)
    if is_url(given):
        raise UsageError(
            f"{without_credentials(str(given))}: is a URL, and only bundles may be; name a local"
            " path"
        )
    return Path(given)


def is_file(place: Place) -> bool:
    """Whether the file exists. Errors as ``Url.is_file``."""
    return place.is_file() if isinstance(place, Url) else os.path.isfile(place)


def is_url(given: object) -> bool:
    """Whether a text has a scheme of object storage; ``file://`` counts as a path."""
    match = _URL.fullmatch(given) if isinstance(given, str) else None
    return match is not None and match[1].lower() not in _LOCAL


def whole(place: object) -> str:
    """A place as text for ``place_of``, with credentials: for other processes, never for people."""
    return place.whole if isinstance(place, Url) else str(place)


def wait(
    asked: Future[Any],
    place: Url,
    patience: float | None = None,
    stop: threading.Event | None = None,
    shared: bool = False,
) -> Any:
    """The result of ``Url.begin``, given up after ``patience`` seconds (default ``PATIENCE``), or
    at once when ``stop`` is set. Errors as ``Url.call``.

    ``shared``: other threads wait for it, too, so it is not cancelled."""
    from concurrent.futures import CancelledError  # slow to import
    from concurrent.futures import TimeoutError as TimedOutError

    patience = PATIENCE if patience is None else patience
    end = time.monotonic() + patience
    try:
        while True:
            try:
                return asked.result(_LOOK if stop is not None else patience)
            except TimedOutError as error:
                if asked.done() and asked.exception() is error:  # raised by the library
                    raise
            if stop is not None and stop.is_set():
                raise CancelledError
            if time.monotonic() >= end:
                raise NoAnswerError(
                    errno.ETIMEDOUT, f"no answer within {patience:.0f} s", str(place)
                )
    except CancelledError:
        raise OSError(errno.ECANCELED, "stopped", str(place)) from None
    except Exception as error:
        raise as_os_error(error, str(place), place.hide) from None
    finally:
        if not shared:
            asked.cancel()  # has no effect once it is done


#: File systems in use, by process and URL: fsspec would open new connections in each thread.
_systems: dict[tuple[object, ...], Any] = {}


def _system(url: Url) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    key = os.getpid(), url.scheme, url.path.partition("/")[0], url.user, url.query
    if key not in _systems:
        from fsspec.core import url_to_fs

        _systems[key] = url_to_fs(url.whole)[0]
    system = _systems[key]
    return system, system._strip_protocol(url.whole)


async def _called(system: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """The result of a file system's method; awaited where it is a coroutine."""
    if system.async_impl:
        return await getattr(system, f"_{name}")(*arguments, **options)
    return getattr(system, name)(*arguments, **options)


async def _described_and_read(system: Any, path: str, most: int) -> ServerAnswer:
    described = await _called(system, "info", path)
    if described.get("type") == "directory":
        raise FileNotFoundError(path)
    size = described.get("size")
    return described, (
        None if isinstance(size, int) and size > most else await _called(system, "cat_file", path)
    )


async def _again(
    work: Callable[[Any, str], Coroutine[Any, Any, Any]], system: Any, path: str
) -> Any:
    """Retry when a connection or the server fails."""
    from asyncio import sleep

    for pause in _WAITS:
        try:
            return await work(system, path)
        except (FileNotFoundError, PermissionError, NotImplementedError):
            raise
        except Exception as error:
            status = getattr(error, "status", None)
            if isinstance(status, int) and status < 500:
                raise
        await sleep(pause)
    return await work(system, path)


def _done_at_once(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """A future for work that never waits."""
    from concurrent.futures import Future

    done: Future[Any] = Future()
    try:
        work.send(None)
    except StopIteration as end:
        done.set_result(end.value)
    except Exception as error:
        done.set_exception(error)
    return done
