"""The same training as distributed.py, in processes that torch.multiprocessing spawns."""

import tempfile

import torch.multiprocessing as mp
from distributed import train


def work(rank, folder):
    train(init_method=f"file://{folder}/store", rank=rank, world_size=2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder,), nprocs=2)
