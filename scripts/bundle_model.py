"""Write a trained model into the folder of its model card, small enough for the repository.

    python scripts/bundle_model.py --model runs/everyday_en_de --output model_cards/everyday_en_de

Weights are rounded to bfloat16. config.json asks for float32 nevertheless, because most CPUs compute faster in float32.
The code of the model, which usually lies beside the weights, is left out. An example translation of the new model is
written beside its weights.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.loading import load_translator
from vaswani_transformer.translation.example import keep_example


def write_bundle(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    # `tied` holds the further names of shared matrices. Copies in bfloat16 are not shared, so a matrix would be saved
    # once under each of its names.
    tied = model.all_tied_weights_keys
    weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items() if name not in tied}
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.backend_tokenizer.no_padding()  # otherwise the padding of the tokenizer's last call would be saved
    tokenizer.save_pretrained(folder)
    for code in folder.glob("*_vaswani.py"):
        code.unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    config["task_specific_params"] = {task: {} for task in config.pop("custom_pipelines")}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    keep_example(folder)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="run folder or model folder")
    parser.add_argument("--output", type=Path, required=True, help="folder to write, such as model_cards/NAME")
    args = parser.parse_args(argv)
    write_bundle(*load_translator(args.model, dtype="float32"), args.output)
    print(f"{args.output}: {(args.output / 'model.safetensors').stat().st_size:,} bytes of weights")


if __name__ == "__main__":
    main()
