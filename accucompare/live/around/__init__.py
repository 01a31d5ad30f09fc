"""Where a model runs: machine, code, libraries, ranks."""
