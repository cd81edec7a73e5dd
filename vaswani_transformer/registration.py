"""Our classes for the Auto classes of transformers, registered when a program first imports those.

Importing the Auto classes takes two seconds of processor time, importing the model as long again. `vaswani --help` and
a program that uses neither need not wait for them.
"""

import sys
import threading
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def _register_config(auto: ModuleType) -> None:
    from .model.configuration_vaswani import VaswaniConfig

    auto.AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)


def _register_models(auto: ModuleType) -> None:
    from .model.modeling_vaswani import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel

    auto.AutoModel.register(VaswaniConfig, VaswaniModel)
    auto.AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)


class _Depth(threading.local):
    """How many watched imports are under way in this thread, one inside the other."""

    value = 0


class AutoClassFinder(MetaPathFinder):
    """Finds modules as Python does, and registers our classes once the Auto classes are imported.

    The files of the model import Auto classes themselves, in part: registration imports those files, so it waits for
    the end of the outermost import of either kind.
    """

    def __init__(self):
        self.depth = _Depth()
        self.waiting = {
            "transformers.models.auto.configuration_auto": _register_config,
            "transformers.models.auto.modeling_auto": _register_models,
        }

    def find_spec(self, fullname: str, path=None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.waiting and not fullname.startswith(f"{__package__}.model."):
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
