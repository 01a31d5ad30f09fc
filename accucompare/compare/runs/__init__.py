"""Two runs of training, step by step."""

from accucompare.compare.runs.acceptance import Acceptance as Acceptance
from accucompare.compare.runs.acceptance import Met as Met
from accucompare.compare.runs.acceptance import StandardMeasure as StandardMeasure
from accucompare.compare.runs.acceptance import StandardRule as StandardRule
from accucompare.compare.runs.acceptance import StandardTrouble as StandardTrouble
from accucompare.compare.runs.acceptance import accept as accept
from accucompare.compare.runs.ladder import climb as climb
from accucompare.compare.runs.ladder import coarsest as coarsest
from accucompare.compare.runs.later_steps import after_updates as after_updates
from accucompare.compare.runs.later_steps import by_envelope as by_envelope
from accucompare.compare.runs.parting import Parting as Parting
from accucompare.compare.runs.parting import Rung as Rung
from accucompare.compare.runs.step_pairs import OtherSetting as OtherSetting
from accucompare.compare.runs.step_pairs import StepPair as StepPair
from accucompare.compare.runs.step_rows import number_of as number_of
from accucompare.compare.runs.step_rows import with_clipping as with_clipping
from accucompare.compare.runs.step_rows import with_step_rows as with_step_rows
from accucompare.compare.runs.training_result import JudgedBy as JudgedBy
from accucompare.compare.runs.training_result import TrainingResult as TrainingResult
from accucompare.compare.runs.wander import Apart as Apart
from accucompare.compare.runs.wander import Quantity as Quantity
from accucompare.compare.runs.wander import Wander as Wander
from accucompare.compare.runs.wander import value_of as value_of
