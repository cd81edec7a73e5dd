"""Register the model with the Auto classes and pipelines of transformers, and with its engine."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines

from .engine.engine import find_engine
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.pipeline_vaswani import TRANSLATION_TASK, TranslationPipeline

AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)
AutoModel.register(VaswaniConfig, VaswaniModel)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)

# transformers v5 refuses "translation" by name before it looks at what is registered.
pipelines.REMOVED_TASKS.pop("translation", None)
_registry = pipelines.PIPELINE_REGISTRY
# register_pipeline() would make the pipeline's save_pretrained() forget the languages of a model.
_registry.supported_tasks["translation"] = {"impl": TranslationPipeline, "pt": (AutoModelForSeq2SeqLM,)}
_check_task = _registry.check_task
_registry.check_task = lambda task: _check_task("translation" if TRANSLATION_TASK.fullmatch(task) else task)
# With the package no pipeline of a model is custom: transformers would ask for trust in the code saved with the model.
VaswaniConfig.custom_pipelines = property(
    lambda config: {}, lambda config, tasks: vars(config).update(custom_pipelines=tasks)
)
VaswaniForConditionalGeneration.find_engine = find_engine
