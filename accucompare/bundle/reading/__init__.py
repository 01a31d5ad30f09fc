"""Reading a bundle: which records it holds, and their data, block by block and verified."""

from accucompare.bundle.reading.global_tensor import GlobalTensor
from accucompare.bundle.reading.notebook_bundle import bundle_html
from accucompare.bundle.reading.reader import Bundle, open_bundle
from accucompare.bundle.reading.sketches import Sketch, numbers_of
from accucompare.bundle.reading.step_columns import Outline, StepColumns
from accucompare.bundle.reading.stored_tensor import Index, StoredTensor
from accucompare.bundle.reading.verification import Verified, verify

__all__ = [
    "Bundle",
    "GlobalTensor",
    "Index",
    "Outline",
    "Sketch",
    "StepColumns",
    "StoredTensor",
    "Verified",
    "bundle_html",
    "numbers_of",
    "open_bundle",
    "verify",
]
