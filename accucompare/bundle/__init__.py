"""The format on disk: records, writing, reading. NumPy only, never torch.

golden/
  manifest.json          format version, complete or not, how it was made, steps, ranks
  rank0/step0.npz        plain stored ZIP64 that ``numpy.load`` opens
  rank0/step0.jsonl      one line a record
"""
