import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Tests do not see what earlier runs left in the user's caches, and leave nothing there. Libraries read these variables
# when they are imported.
os.environ["HF_HOME"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()

from shortcuts import vaswani
from tiny_training import PAIRS
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, train_tokenizer
from vaswani_transformer.data.preparation import Corpus, prepare
from vaswani_transformer.files import lock_folder

# On models this small several threads are slower than one, and they change the last bits of a sum. One thread is used
# here and in the processes that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Expected values are exact results of CPUs. So GPUs are hidden, unless the caller has set CUDA_VISIBLE_DEVICES.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# Gloo connects processes through the address of the host's name, which may be unreachable. The loopback always works.
if sys.platform == "linux":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

# ATEN_CPU_CAPABILITY may choose another instruction set. Kernels that torch.compile has cached for one instruction set
# fail under another, so each instruction set has its own cache. An older value is replaced, because importing torch may
# have set one.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = (
    f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}_{torch.backends.cpu.get_cpu_capability()}"
)

# Hypothesis's examples have no deadline, because their time says more about the machine than about the code. Each run
# has the same examples, so that no test fails by chance.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

MEMORY = Path("/dev/shm")


def pytest_configure():
    """Keep temporary files in memory if it has room, because a sync costs nothing there."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # some tests write programs and run them
        return
    if shutil.disk_usage(MEMORY).free > 4 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_unconfigure():
    shutil.rmtree(os.environ["HF_HOME"])


@pytest.fixture(scope="session", autouse=True)
def folder_to_start_in(tmp_path_factory):
    """Work in an empty folder, so that no test depends on where the tests are started and what lies there."""
    folder = tmp_path_factory.mktemp("empty")
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture(autouse=True)
def nothing_is_left(folder_to_start_in):
    """Check that a test leaves nothing in this folder, where later tests would see it."""
    yield
    assert not list(folder_to_start_in.iterdir())


# No two sizes are equal, so that a test fails if two dimensions are swapped.
TINY_SIZES = {
    "vocab_size": 37,
    "d_model": 12,
    "d_ff": 19,
    "num_heads": 3,
    "d_k": 5,
    "d_v": 7,
    "encoder_layers": 2,
    "decoder_layers": 4,
}


@pytest.fixture
def output_of(capsys):
    """Return a function that runs a command, checks that it succeeds, and returns what it prints."""

    def run(*command):
        vaswani(*command)
        return capsys.readouterr().out

    return run


@pytest.fixture
def error_of(capsys):
    """Return a function that runs a command, checks that it fails, and returns what it writes to standard error."""

    def run(*command):
        vaswani(*command, status=1)
        return capsys.readouterr().err

    return run


@pytest.fixture
def tiny_config():
    return VaswaniConfig(**TINY_SIZES)


@pytest.fixture
def tiny_model(build_tiny_model):
    return build_tiny_model()


@pytest.fixture(scope="session")
def build_tiny_model():
    """Return a function that builds the tiny model with changes to its config, in evaluation mode.

    `noise` is the standard deviation of the random numbers that are added to every weight. Without noise, biases are 0
    and weights of norms are 1, which could hide a mistake.
    """

    def build(
        *, seed: int = 0, noise: float = 0.0, dtype=torch.float32, attention: str = "sdpa", **changes
    ) -> VaswaniForConditionalGeneration:
        torch.manual_seed(seed)
        config = VaswaniConfig(**TINY_SIZES | changes)
        config._attn_implementation = attention
        model = VaswaniForConditionalGeneration(config).eval().to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
        return model

    return build


@pytest.fixture
def file_calls(tmp_path, monkeypatch):
    """Return a list that records each sync and renaming of a path in `tmp_path`, as "sync NAME" or "rename NAME"."""
    calls = []

    def record(function, name):
        def call(file, *args):
            stat = os.stat(file)
            found = [path for path in (tmp_path, *tmp_path.rglob("*")) if os.path.samestat(path.stat(), stat)]
            calls.extend(f"{name} {path.relative_to(tmp_path)}" for path in found)
            return function(file, *args)

        return call

    for function, name in (("fsync", "sync"), ("rename", "rename"), ("replace", "rename")):
        monkeypatch.setattr(os, function, record(getattr(os, function), name))
    return calls


@pytest.fixture
def little_room():
    """Return a function: in the block of `with little_room(n)` no file can grow beyond n bytes, as on a full disk."""
    resource = pytest.importorskip("resource")  # not on Windows

    @contextlib.contextmanager
    def limit(num_bytes: int):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limit


def hold(folder, connection):
    """Lock `folder`, say so through `connection`, and wait to be killed."""
    with lock_folder(folder):
        connection.send("locked")
        time.sleep(60)


@pytest.fixture
def another_process(tmp_path):
    """Start and return a process that has locked `tmp_path`."""
    ours, theirs = multiprocessing.Pipe()
    holder = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, theirs))
    holder.start()
    ours.recv()
    yield holder
    holder.kill()
    holder.join()


@pytest.fixture(scope="session")
def find_bundled():
    """Return a function that finds the folder of a bundled model by name, and skips the test if weights are absent."""

    def find(name: str) -> Path:
        folder = Path(__file__).parents[1] / "model_cards" / name
        if not (folder / "model.safetensors").exists():
            pytest.skip(f"needs the weights of {name}: run the tests in a clone of the repository")
        return folder

    return find


@pytest.fixture(scope="session")
def bundled_model(find_bundled) -> Path:
    """Return the folder of the translation model that comes with the repository."""
    return find_bundled("everyday_en_de")


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """Return a folder with the prepared data of the tiny run."""
    folder = tmp_path_factory.mktemp("data")
    prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[:9], folder, vocab_size=300)
    return folder


@pytest.fixture(scope="session")
def build_ending_model(build_tiny_model):
    """Return a function that builds the tiny model and adds `end_bias` to the logit of `</s>`.

    The bias lets searches end at many different lengths.
    """

    def build(*, end_bias: float, max_length_offset: int, **changes) -> VaswaniForConditionalGeneration:
        model = build_tiny_model(**{"noise": 0.4, "encoder_layers": 1, "output_bias": True} | changes)
        model.generation_config.max_length_offset = max_length_offset
        with torch.no_grad():
            model.lm_head.bias[model.config.eos_token_id] += end_bias
        return model

    return build


@pytest.fixture(scope="session")
def build_translator():
    """Return a function that builds an untrained model, and a tokenizer that is trained on `sentences`."""

    def build(
        sentences: list[str], *, vocab_size: int = 290, folder: Path | None = None, **changes
    ) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
        """Return the model and its tokenizer, and save both if a `folder` is given. `changes` apply to the config."""
        tokenizer = train_tokenizer(sentences, vocab_size=vocab_size)
        torch.manual_seed(0)
        sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
        model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=len(tokenizer), **sizes | changes)).eval()
        broken = [token for token in range(len(tokenizer)) if "\ufffd" in tokenizer.decode(token)]
        # The model should write whole characters only. With zero weights, the logit of a broken token is 0, which is
        # hardly ever the largest.
        with torch.no_grad():
            model.get_input_embeddings().weight[broken] = 0
        if folder is not None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return model, tokenizer

    return build


@pytest.fixture(scope="session")
def data_folder():
    """Return the folder of real data: $VASWANI_DATA, or else shared/data beside the repository.

    Skip the test if this folder is absent.
    """
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("VASWANI_DATA", default))
    if not folder.is_dir():
        pytest.skip("needs the shared corpora: set VASWANI_DATA to the folder that holds them")
    return folder


@pytest.fixture(scope="module")
def metric_modules(tmp_path_factory):
    """Let `evaluate` load metrics without a network, and keep copies of their modules in a temporary folder."""
    import evaluate  # here, because the import takes a while and few tests need it

    folder = str(tmp_path_factory.mktemp("modules"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
        monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", folder)
        monkeypatch.setattr(evaluate.loading, "init_hf_modules", lambda _=None: folder)
        monkeypatch.syspath_prepend(folder)
        forget_metric_modules()
        yield
    forget_metric_modules()


def forget_metric_modules() -> None:
    """Remove the imported modules of metrics, so that the next import reads them from the folder in use by then."""
    for name in list(sys.modules):
        if name.startswith("evaluate_modules"):
            del sys.modules[name]
