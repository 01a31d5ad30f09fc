"""Which record, module or step of one side is which of the other."""
