"""Our classes for the Auto classes and the pipelines of transformers, registered when a program first imports those.

Importing the Auto classes takes two seconds of processor time, importing the model as long again. `vaswani --help` and
a program that uses neither need not wait for them.
"""

import sys
import threading
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

WATCHED = ("transformers.", f"{__package__}.model.")
TASKS = "custom_pipelines"  # of a config: what it is saved with


def _register_config(auto: ModuleType) -> None:
    from .model.configuration_vaswani import VaswaniConfig

    setattr(VaswaniConfig, TASKS, SavedTasks())
    auto.AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)


def _register_models(auto: ModuleType) -> None:
    from .model.modeling_vaswani import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel

    auto.AutoModel.register(VaswaniConfig, VaswaniModel)
    auto.AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)


def _register_task(pipelines: ModuleType) -> None:
    """Register "translation", which transformers v5 refuses by name before it looks at what is registered."""
    from transformers import AutoModelForSeq2SeqLM

    from .model.pipeline_vaswani import TranslationPipeline

    pipelines.REMOVED_TASKS.pop("translation", None)
    registry = pipelines.PIPELINE_REGISTRY
    registry.task_aliases = TaskAliases(registry.task_aliases)
    # register_pipeline() would make the pipeline's save_pretrained() forget the languages of a model.
    registry.supported_tasks["translation"] = {"impl": TranslationPipeline, "pt": (AutoModelForSeq2SeqLM,)}


class TaskAliases(dict):
    """Aliases of tasks as given, and each translation_xx_to_yy as one of "translation"."""

    def __contains__(self, task: str) -> bool:
        return super().__contains__(task) or task.startswith("translation_")

    def __missing__(self, task: str) -> str:
        return "translation"


class SavedTasks:
    """The tasks that a config is saved with, unchanged except that `in` finds none.

    `transformers.pipeline` asks there first, and would ask the user to trust the code that was saved with the model,
    which the package has; the registered tasks come second.
    """

    class Tasks(dict):
        def __contains__(self, task: str) -> bool:
            return False

    def __get__(self, config: object | None, owner: type) -> object:
        if config is None or TASKS not in vars(config):
            raise AttributeError(TASKS)
        tasks = vars(config)[TASKS]
        return self.Tasks(tasks) if isinstance(tasks, dict) else tasks

    def __set__(self, config: object, tasks: object) -> None:
        vars(config)[TASKS] = tasks


class _Depth(threading.local):
    """How many watched imports are under way in this thread, one inside the other."""

    value = 0


class AutoClassFinder(MetaPathFinder):
    """Finds modules as Python does, and registers our classes once what they are registered with is imported.

    Modules of transformers import the Auto classes before they are whole, and so do the files of the model, which
    registration imports: it waits for the end of the outermost import of either kind.
    """

    def __init__(self):
        self.depth = _Depth()
        self.waiting = {
            "transformers.models.auto.configuration_auto": _register_config,
            "transformers.models.auto.modeling_auto": _register_models,
            "transformers.pipelines": _register_task,
        }

    def find_spec(self, fullname: str, path=None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(WATCHED):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                self.depth.value += 1
                try:
                    execute(module)
                finally:
                    self.depth.value -= 1
                if not self.depth.value:
                    self.register()

            spec.loader.exec_module = execute_and_register
        return spec

    def register(self) -> None:
        """Register our classes with those Auto classes that are imported and do not have them yet."""
        for name, register in list(self.waiting.items()):
            if name in sys.modules:
                register(sys.modules[name])
                self.waiting.pop(name, None)
