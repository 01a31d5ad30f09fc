"""How large an error may be: by tolerances, or by what a baseline shows of rounding."""
