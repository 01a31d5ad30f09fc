"""-Inf in (root) (glue, after enc), a Proto, in step 0; made inside, by aten.pow.Tensor_Scalar at neginf.py:6.

Runs that module alone on what it was given, which is in the bundle rank0-step0/, and says whether the value shows again:
    python rank0-step0.py [cpu | cuda | cuda:N | npu | npu:N]
Exit code: 1 it shows again, 0 everything is finite here, 2 trouble.
"""

import sys

try:
    from accucompare.reproduce import Reproducer
except Exception as error:
    print(f"this needs torch and accucompare: {error}", file=sys.stderr)
    sys.exit(2)


def build():
    # MISSING: write here how to make a __main__.Proto. It could not be told: Proto is defined in
    # /work/shared/repro/neginf.py, which has loops outside of functions, so that importing it would run the
    # training again
    module = ...
    return module


if __name__ == "__main__":
    sys.exit(Reproducer.open(__file__).main(build, sys.argv[1:]))
