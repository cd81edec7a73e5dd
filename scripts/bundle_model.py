"""Write a trained model small enough to lie in the repository, or bring the code beside such a model up to date.

    python scripts/bundle_model.py --model runs/everyday_en_de --output model_cards/everyday_en_de
    python scripts/bundle_model.py --model model_cards/everyday_en_de --output model_cards/everyday_en_de

Weights are rounded to bfloat16, which halves their file. config.json says float32 all the same, so that they are
computed with in float32 unless a caller asks for another dtype: most CPUs have no instructions for bfloat16, and take
twice as long in it. The second command changes nothing but the code, because rounded weights are rounded to themselves.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.loading import load_translator


def write_bundle(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights in bfloat16, configuration, tokenizer and code to `folder`; other files there are left alone."""
    for code in folder.glob("*_vaswani.py"):  # a file of the model may have been renamed since
        code.unlink()
    tied = model.all_tied_weights_keys  # second names of a matrix, which save_pretrained leaves out
    weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items() if name not in tied}
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="run folder or model folder")
    parser.add_argument("--output", type=Path, required=True, help="folder of the card, which stays as it is")
    args = parser.parse_args(argv)
    write_bundle(*load_translator(args.model, dtype="float32"), args.output)
    print(f"{args.output}: {sum(path.stat().st_size for path in args.output.glob('*.safetensors')):,} bytes of weights")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
