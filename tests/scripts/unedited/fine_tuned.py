import sys

from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", "the", "cat", "dog", "sees", "a", "bird", "runs"]


def main():
    disable_progress_bars()
    words = Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    texts = ["the cat sees a bird", "a dog runs", "the dog sees the cat", "a bird sees a dog"] * 3
    args = SFTConfig(
        sys.argv[1],
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_length=16,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=3,
    )
    tokens = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(n_positions=16, n_embd=16, n_layer=2, n_head=2, **tokens))
    trainer = SFTTrainer(
        model, args, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tokenizer
    )
    trainer.train()
    print(sum(p.double().sum() for p in model.parameters()).item().hex())


if __name__ == "__main__":
    main()
