"""Writing a bundle in the background, every file whole."""

from accucompare.bundle.writing import archive_writer
from accucompare.bundle.writing.directory import (
    discard_unfinished,
    forget_previous,
    prepare_directory,
    previous_of,
    refuse_directory,
    restore_previous,
)
from accucompare.bundle.writing.lock import locked
from accucompare.bundle.writing.memory import LENT, Lease
from accucompare.bundle.writing.record_file import (
    SKETCHES_A_MEMBER,
    RecordFile,
    Sketched,
    sketches_name,
)
from accucompare.bundle.writing.writer import QUEUE_BYTES, BundleWriter

__all__ = [
    "LENT",
    "QUEUE_BYTES",
    "SKETCHES_A_MEMBER",
    "BundleWriter",
    "Lease",
    "RecordFile",
    "Sketched",
    "archive_writer",
    "discard_unfinished",
    "forget_previous",
    "locked",
    "prepare_directory",
    "previous_of",
    "refuse_directory",
    "restore_previous",
    "sketches_name",
]
