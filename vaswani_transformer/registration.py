"""Register the model with the Auto classes and pipelines of transformers, and give it this package's faster code."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines

from .engine.engine import build_engine, find_engine
from .engine.search import FastBeamSearch
from .kernels.cross_entropy import sum_loss_by_slices
from .model.configuration_vaswani import VaswaniConfig
from .model.generation_vaswani import VaswaniGenerationMixin
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.pipeline_vaswani import TRANSLATION_TASK
from .translation.pipeline import TranslationPipeline


class _NoDefaultModel(dict):
    """An empty table of default models. transformers looks here if the user gives no model, and gets an error."""

    def __contains__(self, name):
        raise ValueError('the task "translation" has no default model: give model="folder or Hub id".')


AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)
AutoModel.register(VaswaniConfig, VaswaniModel)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)
# From here on, `transformers.pipeline("translation", ...)` builds a `TranslationPipeline`. transformers v5 would refuse
# this task, because it lists it as removed: so the entry is taken out of that list. And transformers would not know
# names with languages, such as "translation_en_to_de": so `check_task` treats them as "translation". It calls the
# method of the class, because this module may be loaded again.
registry = pipelines.PIPELINE_REGISTRY
pipelines.REMOVED_TASKS.pop("translation", None)
registry.check_task = lambda task: type(registry).check_task(
    registry, "translation" if TRANSLATION_TASK.fullmatch(task) else task
)
# register_pipeline() would register the task too. But then save_pretrained() of a pipeline would replace the
# `custom_pipelines` in the model's config. The names of its tasks, such as "translation_en_to_de", tell the languages
# of the model, and would be lost.
registry.supported_tasks["translation"] = {
    "impl": TranslationPipeline,
    "pt": (AutoModelForSeq2SeqLM,),
    "default": _NoDefaultModel(),
}
# Once this package is imported, transformers must not see the `custom_pipelines` of a config: it would ask the user to
# trust the code that is saved with the model. So reading the field gives {}. Setting it keeps the value in
# `vars(config)`, so that it is still saved with the config.
VaswaniConfig.custom_pipelines = property(
    lambda config: {}, lambda config, tasks: vars(config).update(custom_pipelines=tasks)
)


class PackageCode:
    """The package's faster code, see `Faster`."""

    search_class = FastBeamSearch
    find_engine = staticmethod(find_engine)
    build_engine = staticmethod(build_engine)
    sum_loss = staticmethod(sum_loss_by_slices)


VaswaniGenerationMixin.faster = PackageCode()
