import re
from pathlib import Path

from setuptools import find_packages, setup

PLOTS = ["matplotlib>=3.10"]
TENSORBOARD = ["tensorboard>=2.19"]
EXPORT = ["ctranslate2>=4.7"]
TOUR = ["ipykernel>=6.29", "nbclient>=0.10", "nbformat>=5.10", *PLOTS]
LINK_TO_A_FILE = re.compile(r"!?\[([^\]]*)\]\((?!https?://)[^)]*\)")  # leads nowhere outside the repository

setup(
    name="vaswani-transformer",
    version="0.1.0",
    description='The Transformer of "Attention Is All You Need", for Hugging Face transformers',
    long_description=LINK_TO_A_FILE.sub(r"\1", Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    author="The vaswani_transformer authors",
    license="Apache-2.0",
    project_urls={"Paper": "https://arxiv.org/abs/1706.03762"},
    keywords=["transformer", "attention", "machine translation", "transformers", "beam search", "parsing"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    packages=find_packages(include=["vaswani_transformer", "vaswani_transformer.*"]),
    py_modules=["vaswani_cli"],
    package_data={"": ["*.html", "*.md", "*.toml", "*.txt"]},
    python_requires=">=3.11",
    # scripts/check_versions.sh runs the tests with the lowest of each, and with the newest.
    install_requires=[
        "torch>=2.13",
        "transformers>=5.23,<6",
        "huggingface_hub>=1.31",
        "accelerate>=1.15",
        "datasets>=4.3",
        "tokenizers>=0.23.1",
        "evaluate>=0.4.6",
        "filelock>=4.0",
        "sacrebleu>=2.5",
        "sacremoses>=0.2",
        "safetensors>=0.8",
        "pyarrow>=21",
        "tabulate>=0.10",
        "sentencepiece>=0.2.2",
        "sentencex>=1.0.32",
        "protobuf>=7.36.1",  # reads models of SentencePiece, and its compiled rules
        "numpy>=1.26",
        "tqdm>=4.66.3",
    ],
    extras_require={
        "plots": PLOTS,
        "tour": [*TOUR, "nbclassic>=1.3"],  # nbclassic opens a notebook, and its nbconvert exports it
        "export": EXPORT,
        "tensorboard": TENSORBOARD,
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "peft>=0.21.2",
            "ruff>=0.14",
            *EXPORT,
            *TOUR,
        ],
    },
    entry_points={"console_scripts": ["vaswani = vaswani_cli:main"]},
)
