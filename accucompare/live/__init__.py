"""All that touches a live model, whoever asks: modules and their names, values, hooks, dispatch,
randomness, numerics, environment.
"""
