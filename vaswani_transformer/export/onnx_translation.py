"""Translate with a folder that `vaswani export --format onnx` has written, by greedy search in onnxruntime.

    from vaswani_transformer.export.onnx_translation import OnnxTranslator

    print(OnnxTranslator("exports/base").translate(["A dog runs."]))

Shapes: B batch, S source length, T target length.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from transformers import GenerationConfig

from ..loading import load_tokenizer
from ..model.configuration_vaswani import VaswaniConfig

DEFAULT_MAX_LENGTH = 20  # transformers', the start token included
GRAPHS = ("encoder_model", "decoder_model", "decoder_with_past_model")


class OnnxTranslator:
    """Text in, text out, by onnxruntime.

    Args:
        folder: written by `vaswani export --format onnx`.
        session_options: for each `onnxruntime.InferenceSession`: sess_options, providers, ...

    Raises:
        FileNotFoundError: if the folder holds no such export.
    """

    def __init__(self, folder: str | Path, **session_options):
        folder = Path(folder)
        missing = [f"{name}.onnx" for name in GRAPHS if not (folder / f"{name}.onnx").exists()]
        if missing:
            raise FileNotFoundError(
                f"{folder} is no ONNX export: {' and '.join(missing)} missing. Write one: "
                f"vaswani export --format onnx --model MODEL --output {folder}"
            )
        self.encoder, self.first_step, self.later_step = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx", **session_options) for name in GRAPHS
        )
        self.tokenizer = load_tokenizer(folder)
        self.generation_config = GenerationConfig.from_pretrained(folder)
        config = VaswaniConfig.from_pretrained(folder, trust_remote_code=False)
        is_learned = config.position_embedding_type == "learned"
        self.most_positions = config.max_position_embeddings if is_learned else sys.maxsize

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Translate one batch of sentences, in their order; an empty one stays empty."""
        translations = [""] * len(sentences)
        rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
        if rows:
            inputs = self.tokenizer([sentences[row] for row in rows], padding=True, return_tensors="np")
            tokens = self.generate(inputs["input_ids"], inputs["attention_mask"])
            for row, text in zip(rows, self.tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
                translations[row] = text.replace("\n", " ")
        return translations

    def generate(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """As `model.generate(input_ids, attention_mask=attention_mask, num_beams=1)`: (B, S), (B, S) -> (B, T).

        Raises:
            ValueError: if a sentence has more tokens than a learned table has positions.
        """
        config = self.generation_config
        if input_ids.shape[1] > self.most_positions:
            raise ValueError(
                f"a sentence has {input_ids.shape[1]} tokens, and the model learned {self.most_positions} positions: "
                f"split it into sentences."
            )
        (states,) = self.encoder.run(None, {"input_ids": input_ids, "attention_mask": attention_mask})
        mask = {"encoder_attention_mask": attention_mask}
        ends = np.array(config.eos_token_id).flatten()
        limits, must_end = self._limit(attention_mask)
        tokens = np.full((len(input_ids), 1), config.decoder_start_token_id, dtype=np.int64)
        done = np.zeros(len(input_ids), dtype=bool)
        remembered = {}
        for length in range(1, limits.max() + 1):
            inputs = mask | {"input_ids": tokens[:, -1:]}
            session = self.later_step if remembered else self.first_step
            inputs |= remembered or {"encoder_hidden_states": states}
            names = [output.name for output in session.get_outputs()]
            logits, *present = session.run(names, inputs)
            # Keys and values of the encoder come from the first step only, and stay.
            pasts = (name.replace("present", "past_key_values") for name in names[1:])
            remembered |= dict(zip(pasts, present, strict=True))
            is_last = limits <= length
            best_ends = ends[logits[:, -1, ends].argmax(axis=-1)]
            words = np.where(is_last & must_end, best_ends, logits[:, -1].argmax(axis=-1))
            words = np.where(done, config.pad_token_id, words)
            tokens = np.concatenate([tokens, words[:, None]], axis=1)
            done |= np.isin(words, ends) | is_last
            if done.all():
                break
        return tokens

    def _limit(self, attention_mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B,) tokens a translation may have, and True where the last of them must be </s>: by its source's length."""
        config = self.generation_config
        most = config.max_new_tokens or (config.max_length and config.max_length - 1)
        offset = getattr(config, "max_length_offset", None)
        if offset is None:
            return np.full(len(attention_mask), most or DEFAULT_MAX_LENGTH - 1), np.zeros(len(attention_mask), bool)
        own = np.minimum(attention_mask.sum(axis=1) + offset, self.most_positions)
        return np.minimum(own, most or own), own <= (most or own)
