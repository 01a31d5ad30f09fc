"""Writing a bundle in the background, every file whole."""

from accucompare.bundle.writing import archive_writer as archive_writer
from accucompare.bundle.writing.directory import discard_unfinished as discard_unfinished
from accucompare.bundle.writing.directory import forget_previous as forget_previous
from accucompare.bundle.writing.directory import prepare_directory as prepare_directory
from accucompare.bundle.writing.directory import previous_of as previous_of
from accucompare.bundle.writing.directory import refuse_directory as refuse_directory
from accucompare.bundle.writing.directory import restore_previous as restore_previous
from accucompare.bundle.writing.lock import locked as locked
from accucompare.bundle.writing.memory import LENT as LENT
from accucompare.bundle.writing.memory import Lease as Lease
from accucompare.bundle.writing.record_file import SKETCHES_A_MEMBER as SKETCHES_A_MEMBER
from accucompare.bundle.writing.record_file import RecordFile as RecordFile
from accucompare.bundle.writing.record_file import Sketched as Sketched
from accucompare.bundle.writing.record_file import sketches_name as sketches_name
from accucompare.bundle.writing.writer import QUEUE_BYTES as QUEUE_BYTES
from accucompare.bundle.writing.writer import BundleWriter as BundleWriter
