import argparse

from transformers import GenerationConfig

from .. import loading
from .arguments import check_new_folder

# Options of a generation config that do not change which translation is found.
NOT_OF_THE_SEARCH = {
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "transformers_version"),
    *("use_cache", "cache_implementation", "compile_config", "disable_compile", "return_dict_in_generate"),
    *("output_attentions", "output_hidden_states", "output_logits", "output_scores", "num_return_sequences"),
}


def run(args: argparse.Namespace) -> None:
    names = ("quantization", "max_positions")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    check_new_folder(args.output)
    try:  # packages that no other command needs
        if args.format == "ctranslate2":
            from ..export import ctranslate2_converter as exporter
        else:
            from ..export import onnx_export as exporter
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--format {args.format} needs the package {error.name.split('.')[0]}, which is not installed: "
            f'pip install "vaswani-transformer[export]"'
        ) from error
    model, tokenizer = loading.load_translator(args.model)
    exporter.export_model(model, tokenizer, args.output, **options)
    print(exporter.HOW_TO_USE.format(folder=args.output, search=describe_settings(model.generation_config)))


def describe_settings(config: GenerationConfig) -> str:
    """Return the settings of `config` that decide which translation is found, as name=value, without defaults."""
    defaults = GenerationConfig._get_default_generation_params()
    settings = {
        name: value
        for name, value in config.to_diff_dict().items()
        if not (name in NOT_OF_THE_SEARCH or name.startswith("_")) and value not in (None, False, 0, defaults.get(name))
    }
    # Always named: 0 is a value like any other here, and other engines have other defaults.
    numbers = {"length_penalty": config.length_penalty, "max_length_offset": getattr(config, "max_length_offset", None)}
    if settings.get("num_beams", 1) == 1:
        del numbers["length_penalty"]
    settings |= {name: value for name, value in numbers.items() if value is not None}
    return ", ".join(f"{name}={value!r}" for name, value in settings.items()) or "greedy search"
