"""Which record, module or step of one side is which of the other."""

from accucompare.compare.pairing.align import Pair as Pair
from accucompare.compare.pairing.align import argument_path as argument_path
from accucompare.compare.pairing.align import by_argument as by_argument
from accucompare.compare.pairing.align import pair_records as pair_records
from accucompare.compare.pairing.align import tupled as tupled
from accucompare.compare.pairing.align import with_parameter as with_parameter
from accucompare.compare.pairing.choices import Calls as Calls
from accucompare.compare.pairing.choices import chosen_shape as chosen_shape
from accucompare.compare.pairing.choices import given_otherwise as given_otherwise
from accucompare.compare.pairing.choices import judged_by_limits as judged_by_limits
from accucompare.compare.pairing.choices import most_changed as most_changed
from accucompare.compare.pairing.dumps import of_dumps as of_dumps
from accucompare.compare.pairing.dumps import with_paths_of as with_paths_of
from accucompare.compare.pairing.given_back import (
    with_gradients_given_back as with_gradients_given_back,
)
from accucompare.compare.pairing.order_of_calls import golden_call as golden_call
from accucompare.compare.pairing.proposals import propose as propose
from accucompare.compare.pairing.renames import Model as Model
from accucompare.compare.pairing.renames import Renaming as Renaming
from accucompare.compare.pairing.renames import Signatures as Signatures
from accucompare.compare.pairing.renames import check_maps as check_maps
from accucompare.compare.pairing.renames import clashes as clashes
from accucompare.compare.pairing.renames import counterparts as counterparts
from accucompare.compare.pairing.renames import read_maps as read_maps
from accucompare.compare.pairing.renames import rename as rename
from accucompare.compare.pairing.renames import rename_parameter as rename_parameter
from accucompare.compare.pairing.renames import renamed_model as renamed_model
from accucompare.compare.pairing.renames import renaming_leads as renaming_leads
from accucompare.compare.pairing.renames import renaming_matches as renaming_matches
from accucompare.compare.pairing.renames import signatures_of as signatures_of
from accucompare.compare.pairing.sequences import align_operators as align_operators
from accucompare.compare.pairing.sequences import numbered_as as numbered_as
from accucompare.compare.pairing.sequences import numbered_nodes as numbered_nodes
from accucompare.compare.pairing.tied import SharedNames as SharedNames
from accucompare.compare.pairing.tied import other_names as other_names
