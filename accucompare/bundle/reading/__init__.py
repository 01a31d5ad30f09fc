"""Reading a bundle: which records it holds, and their data, block by block and verified."""

from accucompare.bundle.reading.global_tensor import GlobalTensor as GlobalTensor
from accucompare.bundle.reading.notebook_bundle import bundle_html as bundle_html
from accucompare.bundle.reading.reader import Bundle as Bundle
from accucompare.bundle.reading.reader import open_bundle as open_bundle
from accucompare.bundle.reading.sketches import Sketch as Sketch
from accucompare.bundle.reading.sketches import numbers_of as numbers_of
from accucompare.bundle.reading.step_columns import Outline as Outline
from accucompare.bundle.reading.step_columns import StepColumns as StepColumns
from accucompare.bundle.reading.stored_tensor import Index as Index
from accucompare.bundle.reading.stored_tensor import StoredTensor as StoredTensor
from accucompare.bundle.reading.verification import Verified as Verified
from accucompare.bundle.reading.verification import verify as verify
