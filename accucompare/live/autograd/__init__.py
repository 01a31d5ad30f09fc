"""Whose a gradient is."""

from accucompare.live.autograd.gradients import (
    GradientListener,
    Grads,
    OperatorOfGradient,
    Parameter,
    gradient_state,
    has_foreign_hooks,
    parameters_of,
    register_first_hook,
    stepped_by,
)
from accucompare.live.autograd.graph import (
    ACCUMULATES,
    PASSING_ON,
    Observer,
    observe_backward,
    observe_backward_no_more,
    reachable,
)
from accucompare.live.autograd.node_lines import NodeLines, line_of
from accucompare.live.autograd.spans import (
    OPEN,
    WRITES_INTO_VIEW,
    Cut,
    Edge,
    GradientHook,
    Graph,
    Span,
    Spans,
    Sum,
    backward_of,
    cast_parameter,
    edge_of,
    edge_to,
    edges_of,
    hook_arriving,
    made_by_backward,
    seeded,
)
