"""Custom autograd Functions against finite differences."""
