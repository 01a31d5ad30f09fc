import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

if __name__ == "__main__":
    set_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    )
    ids = torch.randint(64, (12, 8))
    data = [{"input_ids": row, "labels": row} for row in ids]
    args = TrainingArguments(
        sys.argv[1],
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=data[:2])
    trainer.train()
    print(sum(p.double().sum() for p in model.parameters()).item().hex())
