"""Which record, module or step of one side is which of the other."""

from accucompare.compare.pairing.align import (
    Pair,
    argument_path,
    by_argument,
    pair_records,
    tupled,
    with_parameter,
)
from accucompare.compare.pairing.choices import (
    Calls,
    chosen_shape,
    given_otherwise,
    judged_by_limits,
    most_changed,
)
from accucompare.compare.pairing.dumps import of_dumps, with_paths_of
from accucompare.compare.pairing.given_back import with_gradients_given_back
from accucompare.compare.pairing.order_of_calls import golden_call
from accucompare.compare.pairing.proposals import propose
from accucompare.compare.pairing.renames import (
    Model,
    Renaming,
    Signatures,
    check_maps,
    clashes,
    counterparts,
    read_maps,
    rename,
    rename_parameter,
    renamed_model,
    renaming_leads,
    renaming_matches,
    signatures_of,
)
from accucompare.compare.pairing.sequences import align_operators, numbered_as, numbered_nodes
from accucompare.compare.pairing.tied import SharedNames, other_names

__all__ = [
    "Calls",
    "Model",
    "Pair",
    "Renaming",
    "SharedNames",
    "Signatures",
    "align_operators",
    "argument_path",
    "by_argument",
    "check_maps",
    "chosen_shape",
    "clashes",
    "counterparts",
    "given_otherwise",
    "golden_call",
    "judged_by_limits",
    "most_changed",
    "numbered_as",
    "numbered_nodes",
    "of_dumps",
    "other_names",
    "pair_records",
    "propose",
    "read_maps",
    "rename",
    "rename_parameter",
    "renamed_model",
    "renaming_leads",
    "renaming_matches",
    "signatures_of",
    "tupled",
    "with_gradients_given_back",
    "with_parameter",
    "with_paths_of",
]
