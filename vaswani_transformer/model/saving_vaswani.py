"""Loading and saving: weights from safetensors only, and the code that goes along with them."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from .pipeline_vaswani import custom_pipelines

AUTO_MAP = {
    "AutoConfig": "configuration_vaswani.VaswaniConfig",
    "AutoModel": "modeling_vaswani.VaswaniModel",
    "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForConditionalGeneration",
}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
NO_PICKLE = (
    "Reading a pickle can run any program, so weights are read from safetensors only: ask the author of the file for "
    "model.safetensors, or convert it on a machine where a program can do no harm."
)


def follow_umask(*paths: Path) -> None:
    """Give each file the mode of any new file; safetensors hides what it writes from other users (0600)."""
    mask = os.umask(0o077)  # it cannot be read without being set
    os.umask(mask)
    for path in paths:
        path.chmod(0o666 & ~mask)


class SavingMixin:
    """`from_pretrained` and `save_pretrained` of every Vaswani model, in front of transformers'."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, use_safetensors: bool | None = None, **kwargs):
        """As transformers, but from safetensors only.

        Raises:
            ValueError: where the weights are pickled.
        """
        if use_safetensors is False:
            raise ValueError(f"use_safetensors=False asks for pickled weights. {NO_PICKLE}")
        if pretrained_model_name_or_path is not None:
            cls.refuse_pickle(Path(pretrained_model_name_or_path, kwargs.get("subfolder", "")))
        return super().from_pretrained(pretrained_model_name_or_path, *args, use_safetensors=True, **kwargs)

    @staticmethod
    def _load_pretrained_model(model, state_dict, checkpoint_files, *args, **kwargs):
        """As transformers, which reads a pickle where an index, an adapter or a file's own name leads to one."""
        for file in checkpoint_files or ():
            if not str(file).endswith(".safetensors"):
                raise ValueError(f"{file} holds no safetensors by its name. {NO_PICKLE}")
        return PreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, *args, **kwargs)

    @staticmethod
    def refuse_pickle(path: Path) -> None:
        """Refuse a pickle of weights, or a folder that holds no others."""
        if path.suffix in PICKLES or (path.is_dir() and not any(path.glob("*.safetensors"))):
            pickles = [path] if path.is_file() else [file for file in path.glob("*") if file.suffix in PICKLES]
            if pickles:
                raise ValueError(f"{pickles[0]} is a pickle. {NO_PICKLE}")

    def save_pretrained(self, save_directory, is_main_process: bool = True, *args, **kwargs) -> None:
        """As transformers, and with the code and the names by which `trust_remote_code=True` finds it."""
        self.config.auto_map = dict(AUTO_MAP)
        if vars(self.config).get("custom_pipelines") is None:
            self.config.custom_pipelines = custom_pipelines()
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process:
            follow_umask(*Path(save_directory).glob("*.safetensors"))

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor], strict: bool = True, assign: bool = False):
        """As every module's; one name of a matrix that has several is enough, which is how `save_pretrained` writes."""
        pairs = self.all_tied_weights_keys.items()
        tied = {name: state_dict[source] for name, source in pairs if source in state_dict and name not in state_dict}
        return super().load_state_dict({**state_dict, **tied} if tied else state_dict, strict, assign)
