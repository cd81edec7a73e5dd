"""Parts of a prepared set: files of token ids, written by this process or by workers, and counted.

Reading and filtering stay in one process, in order, because a pair may repeat any that came before; they take a tenth
to a fifth of the processor time. The workers share all that comes after: tokenising and writing. A worker imports this
file, so this file imports no torch, which would take 5 s and 280 MiB of each.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..files import write_whole
from .corpus import Pair
from .encoding import BlockEncoder

SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())})

Block = tuple[Path, list[Pair], pa.Schema]  # a part that is to be written: its file, its pairs, SCHEMA with metadata


class PartWriter:
    """Tokenises blocks of pairs and writes them as parts.

    Args:
        max_length: longest side in tokens of a pair that is written.
    """

    def __init__(self, encoder: BlockEncoder, *, max_length: int):
        self.encoder, self.max_length = encoder, max_length

    def encode(self, pairs: list[Pair]) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        """The token ids of B `pairs`, and a mask (B,) that is true for each pair that is short enough."""
        sources, targets = map(list, zip(*pairs, strict=True))
        batch = pa.record_batch([self.encoder.encode(sources), self.encoder.encode(targets)], schema=SCHEMA)
        longer_side = pc.max_element_wise(*(pc.list_value_length(column) for column in batch.columns))
        return batch, pc.less_equal(longer_side, self.max_length)

    def write(self, path: Path, pairs: list[Pair], schema: pa.Schema) -> None:
        """Write the pairs that are short enough as the part at `path`."""
        batch, fits = self.encode(pairs)
        with write_whole(path) as file, pa.ipc.new_stream(file, schema) as stream:
            stream.write_batch(batch.filter(fits))


def write_parts(blocks: Iterable[Block], writer: PartWriter, *, workers: int) -> None:
    """Write each of `blocks` as a part: in this process with all cores as threads, or in `workers` of one thread each.

    Each worker holds one block in memory, this process one per worker and two more. Where reading fails, or Ctrl-C
    ends it, parts that workers have begun are still written.

    Raises:
        ChildProcessError: if a worker was killed.
        OSError: if a part cannot be written.
    """
    if workers == 1:
        for block in blocks:
            writer.write(*block)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may wait for ever
    running = deque()
    try:
        with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin_worker, initargs=(writer,)) as pool:
            for block in blocks:
                running.append(pool.submit(_write_in_worker, block))
                if len(running) > workers:
                    running.popleft().result()
            while running:
                running.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"one of {workers} workers was killed, as the system does where memory runs out. Give the same command "
            f"again, or with fewer workers, to go on."
        ) from error


def _begin_worker(writer: PartWriter) -> None:
    global _writer
    _writer = writer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are as many as the cores to be used
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process says when it is over
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the first one is killed: a worker would wait for its next block for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _write_in_worker(block: Block) -> None:
    try:
        _writer.write(*block)
    except Exception:
        raise
    except BaseException as error:  # a panic of the tokenizer's Rust code, which cannot travel between processes
        raise ValueError(f"the tokenizer gives up on this text: {error}") from error


def count_parts(sizes: Mapping[Path, int], *, weight: int) -> dict[str, int]:
    """Counts over the parts of a corpus, read from the files.

    Args:
        sizes: number of pairs of each part, those too long included.
    """
    counts = dict.fromkeys(("pairs", "over_max_length", "source_tokens", "target_tokens", "parts"), 0)
    for path, num_pairs in sizes.items():
        with pa.memory_map(str(path)) as file:
            part = pa.ipc.open_stream(file).read_all()
        counts["parts"] += 1
        counts["pairs"] += weight * part.num_rows
        counts["over_max_length"] += num_pairs - part.num_rows
        counts["source_tokens"] += weight * _num_tokens(part["input_ids"])
        counts["target_tokens"] += weight * _num_tokens(part["labels"])
    return counts


def _num_tokens(column: pa.ChunkedArray) -> int:
    return pc.sum(pc.list_value_length(column)).as_py() or 0
