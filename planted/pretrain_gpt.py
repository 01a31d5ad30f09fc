"""A script as Megatron's users write them, which knows nothing of accucompare.

torchrun --nproc-per-node 2 planted/pretrain_gpt.py --tensor-model-parallel-size 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parents[1])]

from fixtures.parallel import LENGTH, ROWS  # noqa: E402
from planted.megatron_models import (  # noqa: E402
    MegatronLayout,
    forward_step,
    megatron_model,
    megatron_optimizer,
    microbatches,
    tokens_of_rank,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--expert-model-parallel-size", type=int, default=1)
    parser.add_argument("--expert-tensor-parallel-size", type=int, default=0)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--use-distributed-optimizer", action="store_true")
    parser.add_argument("--num-experts", type=int, default=0)
    parser.add_argument("--seq-length", type=int, default=LENGTH)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--train-iters", type=int, default=2)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    return parser.parse_args()


def train_step(
    data: Iterator[Any], model: Any, optimizer: Any, count: int, micro: int, length: int
) -> Any:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    model.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=data,
        model=[model],
        num_microbatches=count,
        seq_length=length,
        micro_batch_size=micro,
        forward_only=False,
    )
    _, norm, _ = optimizer.step()
    return losses, norm


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    context = args.context_parallel_size
    data_ranks = dist.get_world_size() // (tensor * pipeline * context)
    layout = MegatronLayout(
        {"pp": pipeline, "dp": data_ranks, "cp": context, "tp": tensor},
        sequence=args.sequence_parallel,
        sharded=args.use_distributed_optimizer,
        experts=args.num_experts,
        expert_ranks=args.expert_model_parallel_size,
        expert_parts=args.expert_tensor_parallel_size,
        length=args.seq_length,
    )
    dtypes = [torch.bfloat16] if args.bf16 else [torch.float32]
    model = megatron_model(layout, dtypes, seed=5)
    optimizer = megatron_optimizer(layout, args.clip_grad)(model)
    from megatron.core import parallel_state

    place, rows = parallel_state.get_data_parallel_rank(), ROWS // data_ranks
    micro, own = args.micro_batch_size, tokens_of_rank(layout)
    for iteration in range(args.train_iters):
        tokens, labels = (part[place * rows :][:rows] for part in layout.whole_batch(iteration))
        losses, norm = train_step(
            microbatches(tokens, labels, micro, own),
            model,
            optimizer,
            rows // micro,
            micro,
            layout.length,
        )
        if dist.get_rank() == dist.get_world_size() - 1:
            print(f"iteration {iteration} losses {losses} grad norm {norm:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
