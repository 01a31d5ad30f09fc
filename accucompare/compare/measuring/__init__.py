"""The numbers of one pair of tensors, without an opinion of them."""
