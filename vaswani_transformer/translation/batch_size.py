"""How many source tokens share a batch of a translation, by the memory of the device.

The rule reads the device's whole memory, not what is free of it: all processes that share out a file must plan the same
batches. From 16 GiB on it mostly gives the same number for all devices.
"""

import torch

from ..model.configuration_vaswani import VaswaniConfig

ON_CPU = 2_000  # a cache of a processor is full long before its memory
LEAST, MOST = 2_048, 16_384  # on other devices; with more a step takes longer, and sentences no less time
SHARE = 1 / 4  # of the memory; the rest is for weights, the encoder, and copies while sentences leave
SHORT_SENTENCE = 5  # tokens; the shorter the sentences of a batch, the more rows of logits
LOGITS_COPIES = 4
LOGITS_BYTES = 4


def choose_tokens_per_batch(config: VaswaniConfig, memory: int | None, *, num_beams: int, bytes_per_number: int) -> int:
    """Padded source tokens of a batch, before beams: on other devices than a CPU a power of 2.

    Args:
        memory: of the device in bytes; `None` on a CPU.
        bytes_per_number: of keys and values.
    """
    if memory is None:
        return ON_CPU
    keys_and_values = config.decoder_layers * config.num_heads * (config.d_k + config.d_v) * bytes_per_number
    # Of the source once; of the translation, taken to be as long, for each beam and with as much room again.
    per_token = keys_and_values * (1 + 2 * num_beams)
    per_token += num_beams * config.vocab_size * LOGITS_BYTES * LOGITS_COPIES / SHORT_SENTENCE
    fitting = max(1, int(SHARE * memory / per_token))
    return min(MOST, max(LEAST, 2 ** (fitting.bit_length() - 1)))


def find_memory(device: torch.device) -> int | None:
    """The bytes of memory of a CUDA device, all together; `None` for others."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
