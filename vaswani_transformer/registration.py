"""Register the model with the Auto classes and pipelines of transformers, and with its engine."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .engine.engine import build_engine, find_engine
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.pipeline_vaswani import register_task
from .translation.pipeline import AnyTranslationPipeline

AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)
AutoModel.register(VaswaniConfig, VaswaniModel)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)

register_task(AnyTranslationPipeline)
# With the package no pipeline of a model is custom: transformers would ask for trust in the code saved with the model.
VaswaniConfig.custom_pipelines = property(
    lambda config: {}, lambda config, tasks: vars(config).update(custom_pipelines=tasks)
)
VaswaniForConditionalGeneration.build_engine = build_engine
VaswaniForConditionalGeneration.find_engine = find_engine
