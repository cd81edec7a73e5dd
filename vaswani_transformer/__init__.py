"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017) for Hugging Face transformers."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .data.tokenization import train_tokenizer
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.pipeline_vaswani import TranslationPipeline, pipeline

AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)
AutoModel.register(VaswaniConfig, VaswaniModel)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)
# Saved models carry the code that loads them where this package is not installed.
VaswaniConfig.register_for_auto_class()
VaswaniModel.register_for_auto_class("AutoModel")
VaswaniForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "TranslationPipeline",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniModel",
    "pipeline",
    "train_tokenizer",
]
