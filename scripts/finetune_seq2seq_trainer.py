"""Fine-tune a translation model with transformers' Seq2SeqTrainer, and print its BLEU before and after.

    python scripts/finetune_seq2seq_trainer.py --model runs/general/model --output_dir runs/finetuned \\
        --train multi30k/train --dev multi30k/val --test multi30k/test_2016_flickr

A prefix such as multi30k/train names two files of plain text, one sentence per line: multi30k/train.en and
multi30k/train.de. The model is scored on the development set after each epoch. The model with the best of these scores
(BLEU) is scored on the test set, and saved in output_dir. All options of Seq2SeqTrainingArguments can be given, such as
--num_train_epochs 10, --learning_rate 1e-4, --gradient_accumulation_steps 4 or --bf16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sacrebleu
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

import vaswani_transformer  # noqa: F401 - the import makes our models known to the Auto classes
from vaswani_transformer.data.corpus import read_parallel_files
from vaswani_transformer.evaluation.metrics import build_compute_metrics
from vaswani_transformer.training.interruption import destroy_group_at_exit
from vaswani_transformer.training.seq2seq_trainer import load_token_batches


@dataclass
class FineTuningArguments:
    """The arguments of this program, besides those of Seq2SeqTrainingArguments."""

    model: str  # folder of the model to fine-tune, or its name on the Hub
    train: str  # prefix of the two files of the training set
    dev: str  # prefix of the development set, which chooses the best epoch
    test: str  # prefix of the test set, which is scored before and after the training
    source_language: str = "en"  # suffix of the source files
    target_language: str = "de"  # suffix of the target files
    max_length: int = 128  # limit of the tokens of a sentence; a longer sentence is cut
    tokens_per_batch: int = 4096  # limit of the tokens of an update on each side, with padding, over all processes


def build_parser() -> HfArgumentParser:
    parser = HfArgumentParser((FineTuningArguments, Seq2SeqTrainingArguments), description=__doc__)
    parser.set_defaults(
        num_train_epochs=5,
        learning_rate=3e-4,
        lr_scheduler_type="linear",
        warmup_steps=0.1,  # a value below 1 is a share of all updates
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        per_device_eval_batch_size=64,
        predict_with_generate=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="sacrebleu",
        logging_steps=50,
    )
    return parser


def load_text(prefix: str, args: FineTuningArguments, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Return the sentence pairs of the two files that `prefix` names.

    The columns `source` and `target` hold the sentences, `input_ids` and `labels` their token ids.
    """
    pairs = read_parallel_files(Path(f"{prefix}.{args.source_language}"), Path(f"{prefix}.{args.target_language}"))
    return Dataset.from_list([{"source": source, "target": target} for source, target in pairs]).map(
        lambda rows: tokenizer(rows["source"], text_target=rows["target"], max_length=args.max_length, truncation=True),
        batched=True,
    )


def print_bleu(trainer: Seq2SeqTrainer, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, *, when: str) -> None:
    """Translate `dataset` with the search of the model's generation config, and print the BLEU of the text."""
    tokens = trainer.predict(dataset).predictions
    if not trainer.is_world_process_zero():
        return
    # The Trainer joins batches of different lengths, and pads them with -100.
    texts = tokenizer.batch_decode(np.where(tokens < 0, tokenizer.pad_token_id, tokens), skip_special_tokens=True)
    bleu = sacrebleu.BLEU()
    score = bleu.corpus_score(texts, [list(dataset["target"])])
    print(f"{when} fine-tuning: BLEU {score.score:.2f}  {bleu.get_signature()}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    args, training_args = build_parser().parse_args_into_dataclasses(argv)
    set_seed(training_args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=False)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model, trust_remote_code=False)
    train, dev, test = (load_text(prefix, args, tokenizer) for prefix in (args.train, args.dev, args.test))

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        eval_dataset=dev,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=build_compute_metrics(tokenizer, language=args.target_language),
    )
    # The Trainer would give each update the same number of sentences. Here each update has about the same number of
    # tokens.
    trainer.get_train_dataloader = partial(load_token_batches, trainer, tokens_per_batch=args.tokens_per_batch)
    print_bleu(trainer, test, tokenizer, when="before")
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    print_bleu(trainer, test, tokenizer, when="after")
    destroy_group_at_exit()


if __name__ == "__main__":
    main()
