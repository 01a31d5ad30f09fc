"""The events of a watch's log, written line by line."""

from accucompare.findings.log.events import (
    Alert,
    AlertKind,
    Cause,
    Direction,
    End,
    Ending,
    Event,
    Finding,
    Frame,
    Frames,
    ScaleChange,
    Site,
    Step,
    TensorRange,
    WatchStart,
)
from accucompare.findings.log.log import Log, log_path, read_log
from accucompare.findings.log.observations import (
    FLAG,
    MINUS,
    NAN,
    OUTSIDE,
    PLUS,
    SATURATED,
    ModuleCall,
    StepObservation,
    WatchLimits,
    What,
    frames_of,
    kinds_of,
    near_the_limit,
    within,
)
from accucompare.findings.log.vital_events import (
    Applied,
    Given,
    Labels,
    LoadedBatch,
    Lookup,
    LossInput,
    Narrowed,
    Number,
    ParameterFacts,
    Targets,
    TrainingSetup,
    Vitals,
    number,
)
from accucompare.findings.log.watch_remark import WatchRemark, remark
