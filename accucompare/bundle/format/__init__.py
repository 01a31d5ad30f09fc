"""What a bundle is made of: records, the manifest, flags, and the bytes of its files."""

from accucompare.bundle.format import zip_records
from accucompare.bundle.format.byte_sources import Windows, open_lines, open_source, stamp_of
from accucompare.bundle.format.capture_facts import (
    AsLayout,
    Compiled,
    DumpFacts,
    Imported,
    Options,
    RegionFacts,
    SketchFacts,
    Unfed,
)
from accucompare.bundle.format.global_records import (
    UNKNOWN_CONTENT,
    Addends,
    Box,
    GlobalRecord,
    LayoutEvidence,
    row_width,
    whole_box,
)
from accucompare.bundle.format.manifest import (
    BASELINES,
    FORMAT_VERSION,
    NEEDS,
    PREVIOUS,
    PROOF,
    ROUNDED_RUN,
    SHARDS_NEED,
    Manifest,
    StepEntry,
    StepSeries,
    bundle_around,
    holds_bundle,
    manifests_of,
)
from accucompare.bundle.format.records import (
    AT_THE_END,
    BUFFER_ROLES,
    DEVICE_DIGEST,
    GRADIENT_ROLES,
    GROUP_OF,
    NODE_ROLES,
    OPERATOR_ROLES,
    ROLES_OF,
    SERIES_ROLES,
    STATE_ROLES,
    TRAINING_ROLES,
    UPDATE_ROLES,
    WAYS_OF_UPDATING,
    WRAPPER_NAMES,
    WRITTEN_ROLES,
    Error,
    Key,
    Layout,
    Record,
    Role,
    display_name,
    same_line,
)
from accucompare.bundle.format.saved_training import (
    Component,
    Missing,
    SavedDraws,
    SavedObject,
    Started,
    TrainingState,
)
from accucompare.bundle.format.shards import Shard, sketch_of_part
