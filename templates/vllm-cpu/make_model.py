"""Make a tiny Llama with random weights and a tokenizer that was trained on the spot: `make_model.py FOLDER`.

It runs in the engine's environment (torch, transformers, tokenizers). 3.4 M parameters, wide enough that the answer
depends on every token of the prompt: what is wrong with a handoff shows in the tokens.
"""

import random
import string
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
LONGEST = 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = """
the cache router prefill decode engine block token request batch queue latency server model system user assistant hello
world python linux memory network transfer number value of and to in is that for on with as
""".split()  # noqa: SIM905
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def sentence(draw: random.Random) -> str:
    """Some words, one in five invented."""

    def word() -> str:
        if draw.random() < 0.8:
            return draw.choice(WORDS)
        return "".join(draw.choice(string.ascii_lowercase) for _ in range(draw.randint(2, 8)))

    return " ".join(word() for _ in range(draw.randint(5, 20))).capitalize() + "."


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a chat template."""
    draw = random.Random(0)  # noqa: S311 - words to train on
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator([sentence(draw) for _ in range(4000)], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=found, eos_token=SPECIAL[2], pad_token=SPECIAL[0], model_max_length=LONGEST
    )
    fast.chat_template = TEMPLATE
    return fast


def main(folder: str) -> None:
    """Write tokenizer and weights."""
    tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=LONGEST,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        torch_dtype="float32",
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
