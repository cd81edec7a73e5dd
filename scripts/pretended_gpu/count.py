"""Count what an update of `vaswani train` and a step of a beam search would send to a GPU, on a machine without one.

python scripts/pretended_gpu/count.py

Widths are tiny, because counts do not depend on them. The number of layers is the recipe's. Precision is float32.
"""

import copy
import os
import tempfile
from pathlib import Path
from unittest import mock

import torch
from accelerate.state import AcceleratorState
from device import Counts, PretendedGpu
from torch.optim.optimizer import register_optimizer_step_post_hook

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, cli
from vaswani_transformer.engine.engine import Engine

WIDTHS = {"d_model": 16, "d_ff": 32, "num_heads": 4}
COUNTED_UPDATE = 3  # the first update also lets Adam allocate its averages, so a later update is counted
VOCAB_SIZE, LONGEST_SOURCE = 500, 24  # in tokens: the vocabulary of the model in `count_search`, and its longest source


class Counted(BaseException):
    """Raised to end a training when the counted update is done."""


def count_update(recipe: str) -> Counts:
    """Return the counts of one update of `vaswani train`, on 8 sentences of different lengths."""
    with tempfile.TemporaryDirectory() as folder, PretendedGpu() as gpu:
        for split, word in (("train", "a"), ("dev", "b")):
            for side in ("en", "de"):
                lines = [f"{word} {side}{' x' * number}\n" for number in range(8)]
                Path(folder, f"{split}.{side}").write_text("".join(lines), encoding="utf-8")
        train, dev = ([f"{folder}/{split}.en", f"{folder}/{split}.de"] for split in ("train", "dev"))
        command = ["prepare", "--recipe", recipe, "--train", *train, "--dev", *dev, "--output", f"{folder}/data"]
        if cli.main(command):
            raise RuntimeError("vaswani prepare failed")
        AcceleratorState._reset_state(reset_partial_state=True)  # otherwise it may remember another device
        updates = []

        def end_update(*_) -> None:
            updates.append(gpu.take_counts())
            if len(updates) == COUNTED_UPDATE:
                raise Counted

        hook = register_optimizer_step_post_hook(end_update)
        command = ["train", "--recipe", recipe, "--data", f"{folder}/data", "--output", f"{folder}/run"]
        command += [word for name, value in WIDTHS.items() for word in ("--set", f"model.{name}={value}")]
        try:
            with mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="gpu:0"):
                cli.main(["--debug", *command, "--set", "compile=false", "--mixed_precision", "no"])
        except Counted:
            return updates[-1]
        finally:
            hook.remove()
    raise RuntimeError("vaswani train ended before the update that is counted")


def count_search(*, num_sentences: int, num_beams: int, num_steps: int) -> tuple[Counts, Counts, int]:
    """Count what a search sends to the pretended GPU.

    A translation may have at most 2 tokens more than its source. So sentences of different lengths end at different
    steps, and leave the search.

    Returns:
        the counts up to the end of the first step, the counts of all later steps together, and the number of later
        steps.

    Raises:
        RuntimeError: if the same search on the CPU finds other tokens.
    """
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=VOCAB_SIZE, **WIDTHS)).eval()
    mask = (torch.arange(LONGEST_SOURCE) < LONGEST_SOURCE - torch.arange(num_sentences)[:, None] % 18).long()
    ids = torch.randint(3, VOCAB_SIZE, mask.shape) * mask + model.config.pad_token_id * (1 - mask)

    def search(device: str, steps: int) -> tuple[torch.Tensor, Counts]:
        on_device = copy.deepcopy(model).to(device)
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        options = {"num_beams": num_beams, "max_length_offset": 2, "max_new_tokens": steps}
        engine = Engine(on_device)
        for _ in range(2):  # The first call is also compared with `forward`.
            gpu.take_counts()
            found = on_device.generate(**inputs, engine=engine, **options)
        return found, gpu.take_counts()

    with PretendedGpu() as gpu:
        expected, _ = search("cpu", num_steps)
        _, start = search("gpu", 1)
        found, whole = search("gpu", num_steps)
        if not torch.equal(found.cpu(), expected):
            raise RuntimeError("the search on the pretended GPU found other tokens than the search on the CPU")
    return start, whole.minus(start), found.shape[1] - 2  # without the start token and the token of the first step


def print_counts(title: str, counts: Counts, num_steps: int = 1) -> None:
    """Print the counts divided by `num_steps`: for each kind the sum, and the 15 lines with the highest counts."""
    print(title)
    for kind, events in vars(counts).items():
        print(f"{events.total() / num_steps:10.4g}  {kind}")
        for (name, line), number in events.most_common(15):
            print(f"{number / num_steps:20.4g}  {name}  {line}")


if __name__ == "__main__":
    print_counts("an update of base_en_de", count_update("base_en_de"))
    start, steps, num_steps = count_search(num_sentences=64, num_beams=4, num_steps=40)
    print_counts("start of a search of 64 sentences with 4 beams", start)
    print_counts("a step of this search", steps, num_steps)
