"""Make a small byte-level BPE tokenizer: `python local_tokenizer.py FOLDER`, where transformers is installed.

No model hub is asked for anything: it is trained on this repository's own words, in about a second.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "model_max_length": 8192}


def main(folder: pathlib.Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    files = sorted(map(str, (pathlib.Path(__file__).parents[2] / "narwhal").rglob("*.py")))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train(files, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
