from setuptools import find_packages, setup

CONVERT = ["sentencepiece>=0.2"]
DEMO = ["gradio>=6.31,<7"]
EXPORT = ["ctranslate2>=4.7", "onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"]
PLOTS = ["matplotlib>=3.8"]
TOUR = ["ipykernel>=6.29", "nbclient>=0.10", "nbformat>=5.10", *PLOTS]

setup(
    name="vaswani-transformer",
    version="0.1.0",
    description='The Transformer of "Attention Is All You Need", for Hugging Face transformers',
    long_description=open("README.md", encoding="utf-8").read(),  # noqa: SIM115
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["vaswani_transformer", "vaswani_transformer.*"]),
    package_data={"": ["*.html", "*.md"]},
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.6",
        "transformers>=5.23,<6",
        "huggingface_hub>=1.0",
        "accelerate>=1.10",
        "datasets>=4.0",
        "tokenizers>=0.22",
        "evaluate>=0.4.6",
        "sacrebleu>=2.5",
        "sacremoses>=0.2",
        "safetensors>=0.8",
        "pyarrow>=18",
        "numpy>=1.26",
        "tqdm>=4.66",
    ],
    extras_require={
        "plots": PLOTS,
        "tour": TOUR,
        "convert": CONVERT,
        "export": EXPORT,
        "demo": DEMO,
        "dev": [
            "pytest>=8",
            "hypothesis>=6.100",
            "peft>=0.21",
            "ruff>=0.14",
            *CONVERT,
            *DEMO,
            *EXPORT,
            *TOUR,
        ],
    },
    entry_points={"console_scripts": ["vaswani = vaswani_transformer.cli:main"]},
)
