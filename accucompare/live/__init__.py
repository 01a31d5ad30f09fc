"""All that touches a live model: modules, values, autograd, operators, numerics, environment."""
