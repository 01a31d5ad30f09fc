"""Errors of the system and of object storage, in words for people, without credentials.

``places`` says what is tried again, and how long."""

from __future__ import annotations

import errno
from collections.abc import Callable

#: The extra to install for a URL's scheme.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
_OF_REMOTE = ("http", "https", "memory")
_KINDS = "s3://, gs://, https:// (reading only), memory:// and file://"
_MOST_WORDS = 300
#: botocore's words between the name of an invalid bucket and regular expressions of several lines.
_PATTERN = ": Bucket name must match the regex"
#: Refusals that are no PermissionError: HTTP's status, or the name of an error.
_REFUSED = (
    "401",
    "403",
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
)

_CURES = {
    errno.EACCES: "choose a place that you may write to",
    errno.EPERM: "choose a place that you may write to",
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EDQUOT: "free some space, or choose another disk",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or choose another disk",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOTDIR: "a directory in its path is a file; choose another place",
    errno.EEXIST: "a directory in its path is a file; choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
}
FULL = (errno.ENOSPC, errno.EDQUOT)

#: Errors that mean a TimeoutError or ConnectionError; before Python 3.11 asyncio had its own.
_UNREACHABLE = (
    "TimeoutError",
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "ClientConnectorError",
    "ClientConnectorDNSError",
    "ServerDisconnectedError",
)


class NoBucketError(FileNotFoundError):
    """The bucket itself is not there."""


class NoAnswerError(TimeoutError):
    """The storage does not answer, or cannot be reached."""


def cure_of(error: BaseException) -> str:
    return _CURES.get(getattr(error, "errno", None) or 0, "choose another place")


def as_os_error(error: BaseException, place: str, hide: Callable[[str], str]) -> OSError:
    """The OSError for what a library raised, with words for people in ``strerror``. Returns
    ``NoBucketError``, ``NoAnswerError``, FileNotFoundError, PermissionError or OSError.

    Args:
        place: the URL, without credentials.
        hide: removes the URL's secrets from a text.
    """
    if isinstance(error, NoAnswerError):
        return error
    text, code, scheme = _words(error, hide), _code(error), place.partition("://")[0]
    if code == "NoSuchBucket":
        return NoBucketError(errno.ENOENT, text, place)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", place)
    if isinstance(error, PermissionError) or code in _REFUSED:
        return PermissionError(
            errno.EACCES, f"access refused: {text}; {_on_access(code, scheme)}", place
        )
    if isinstance(error, ImportError):
        extra = EXTRAS.get(
            scheme, "remote" if scheme in _OF_REMOTE or error.name == "fsspec" else ""
        )
        # fsspec's own words name the package of any other storage
        cure = f": pip install 'accucompare[{extra}]'" if extra else ""
        return OSError(errno.ENOPKG, text + cure, place)
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return OSError(
            errno.EPROTONOSUPPORT,
            f"{scheme}:// is no storage that is known; these are: {_KINDS}",
            place,
        )
    if isinstance(error, (TimeoutError, ConnectionError)) or code in _UNREACHABLE:
        return NoAnswerError(errno.ETIMEDOUT, f"the storage does not answer: {text}", place)
    what = text if code in text or code == type(error).__name__ else f"{code}: {text}"
    return OSError(
        error.errno if isinstance(error, OSError) and error.errno else errno.EIO, what, place
    )


def _code(error: BaseException) -> str:
    """The storage's code, such as ``NoSuchBucket``; else HTTP's status, or the error's name."""
    response = getattr(error.__cause__ or error, "response", None)
    found = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(found or getattr(error, "status", None) or type(error).__name__)


def _on_access(code: str, scheme: str) -> str:
    if code == "RequestTimeTooSkewed":
        return "set this machine's clock"
    if scheme in ("s3", "s3a"):
        return (
            "give credentials as for other tools of S3 (AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, or ~/.aws)"
        )
    return (
        "give credentials as fsspec takes them (the storage's own variables and files, or fsspec's"
        " configuration)"
    )


def _words(error: BaseException, hide: Callable[[str], str]) -> str:
    """An error's own words, in one line, without secrets."""
    text = (
        (error.strerror if isinstance(error, OSError) and error.strerror else None)
        or str(error)
        or type(error).__name__
    )
    text = text.partition(_PATTERN)[0]
    return " ".join(hide(text).split())[:_MOST_WORDS]
