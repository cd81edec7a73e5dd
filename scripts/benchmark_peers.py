"""The encoder-decoders of other packages, in the sizes of ours and trained as their users train them.

Each is a module that takes a batch and returns its loss: `cross_entropy` with label smoothing on the whole matrix
of logits. Weight matrices have as many entries as ours, one matrix serves both embeddings and the projection, and
dropout is where section 5.4 has it. Where a package lets one choose it gets its fastest attention; what it fixes
(the place of norms, biases) is left as it is.
"""

from importlib.metadata import version
from typing import NamedTuple

import torch
from benchmark_common import build_marian
from torch import nn
from transformers.models.marian.modeling_marian import shift_tokens_right

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.batching import IGNORE_INDEX
from vaswani_transformer.model.layers_vaswani import sinusoids


class PeerOutput(NamedTuple):
    """The part of our model's output that training reads."""

    loss: torch.Tensor
    nll_loss: torch.Tensor  # with smoothing, as peers compute nothing else


class Peer(nn.Module):
    """A model of another package, called like ours.

    Attributes:
        label: in tables.
        package: to install.
    """

    label: str
    package: str

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.config = config

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: int | None = None,
    ) -> PeerOutput:
        """Return the loss in nats per token of `labels` (B, T) given `input_ids` (B, S)."""
        config = self.config
        decoder_input_ids = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
        logits = self.compute_logits(input_ids, attention_mask, decoder_input_ids)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            label_smoothing=config.label_smoothing,
        )
        loss = loss / ((labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)
        return PeerOutput(loss, loss.detach())

    def compute_logits(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits (B, T, V)."""
        raise NotImplementedError


class Marian(Peer):
    label, package = "MarianMTModel", "transformers"

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.model = build_marian(config)

    def compute_logits(self, input_ids, attention_mask, decoder_input_ids):
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
        ).logits


class TorchTransformer(Peer):
    label, package = "torch.nn.Transformer", "torch"

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        table = sinusoids(torch.arange(config.max_position_embeddings), d_model=config.d_model)
        self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            config.activation_function,
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
        )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = config.activation_dropout
            layer.self_attn.dropout = config.attention_dropout
        for layer in self.transformer.decoder.layers:
            layer.multihead_attn.dropout = config.attention_dropout

    def compute_logits(self, input_ids, attention_mask, decoder_input_ids):
        is_padding = attention_mask == 0
        length = decoder_input_ids.shape[1]
        hidden_states = self.transformer(
            self._embed(input_ids),
            self._embed(decoder_input_ids),
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1),
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        return nn.functional.linear(hidden_states, self.embedding.weight)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        """(B, T) -> (B, T, D)."""
        return self.dropout(self.embedding(ids) * self.config.d_model**0.5 + self.positions[: ids.shape[1]])


class XTransformers(Peer):
    label = package = "x-transformers"

    def __init__(self, config: VaswaniConfig):
        from x_transformers import Decoder, Encoder, TransformerWrapper

        super().__init__(config)
        layers = {
            "dim": config.d_model,
            "heads": config.num_heads,
            "pre_norm": False,
            "attn_dim_head": config.d_k,
            "attn_flash": True,
            "attn_sublayer_dropout": config.dropout,
            "ff_mult": config.d_ff / config.d_model,
            "ff_custom_activation": nn.ReLU(),
            "ff_sublayer_dropout": config.dropout,
        }
        embeddings = {
            "num_tokens": config.vocab_size,
            "max_seq_len": config.max_position_embeddings,
            "scaled_sinu_pos_emb": True,
            "emb_dropout": config.dropout,
        }
        self.encoder = TransformerWrapper(
            **embeddings, attn_layers=Encoder(depth=config.encoder_layers, **layers), return_only_embed=True
        )
        self.decoder = TransformerWrapper(
            **embeddings,
            attn_layers=Decoder(depth=config.decoder_layers, cross_attend=True, **layers),
            token_emb=self.encoder.token_emb,
            tie_embedding=True,
        )

    def compute_logits(self, input_ids, attention_mask, decoder_input_ids):
        is_token = attention_mask.bool()
        memory = self.encoder(input_ids, mask=is_token, return_embeddings=True)
        return self.decoder(decoder_input_ids, context=memory, context_mask=is_token)


class OpenNMT(Peer):
    label = package = "OpenNMT-py"

    def __init__(self, config: VaswaniConfig):
        from onmt.decoders.transformer import TransformerDecoder
        from onmt.encoders.transformer import TransformerEncoder
        from onmt.modules import Embeddings

        super().__init__(config)
        embeddings = Embeddings(
            config.d_model, config.vocab_size, config.pad_token_id, position_encoding=True, dropout=config.dropout
        )
        layers = {
            "d_model": config.d_model,
            "heads": config.num_heads,
            "d_ff": config.d_ff,
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "embeddings": embeddings,
            "max_relative_positions": 0,
        }
        self.encoder = TransformerEncoder(num_layers=config.encoder_layers, **layers)
        self.decoder = TransformerDecoder(
            num_layers=config.decoder_layers,
            **layers,
            copy_attn=False,
            self_attn_type="scaled-dot",
            aan_useffn=False,
            full_context_alignment=False,
            alignment_layer=0,
            alignment_heads=0,
        )
        self.generator = nn.Linear(config.d_model, config.vocab_size)
        self.generator.weight = embeddings.word_lut.weight
        for layer in (*self.encoder.transformer, *self.decoder.transformer_layers):
            layer.feed_forward.dropout_1.p = config.activation_dropout

    def compute_logits(self, input_ids, attention_mask, decoder_input_ids):
        source = input_ids[..., None]
        memory, _, lengths = self.encoder(source, attention_mask.sum(dim=1))
        self.decoder.init_state(source, memory, None)
        hidden_states, _ = self.decoder(decoder_input_ids[..., None], memory, src_len=lengths)
        return self.generator(hidden_states)


class JoeyNMT(Peer):
    label, package = "JoeyNMT", "joeynmt"

    def __init__(self, config: VaswaniConfig):
        from joeynmt.decoders import TransformerDecoder
        from joeynmt.embeddings import Embeddings
        from joeynmt.encoders import TransformerEncoder

        super().__init__(config)
        self.embedding = Embeddings(
            config.d_model, scale=True, vocab_size=config.vocab_size, padding_idx=config.pad_token_id
        )
        layers = {
            "hidden_size": config.d_model,
            "ff_size": config.d_ff,
            "num_heads": config.num_heads,
            "dropout": config.dropout,
            "emb_dropout": config.dropout,
            "layer_norm": "post",
        }
        self.encoder = TransformerEncoder(num_layers=config.encoder_layers, **layers)
        self.decoder = TransformerDecoder(num_layers=config.decoder_layers, vocab_size=config.vocab_size, **layers)
        self.decoder.output_layer.weight = self.embedding.lut.weight
        for layer in (*self.encoder.layers, *self.decoder.layers):
            layer.feed_forward.pwff_layer[2].p = config.activation_dropout
        for layer in self.encoder.layers:
            layer.src_src_att.dropout.p = config.attention_dropout
        for layer in self.decoder.layers:
            layer.trg_trg_att.dropout.p = layer.src_trg_att.dropout.p = config.attention_dropout

    def compute_logits(self, input_ids, attention_mask, decoder_input_ids):
        source_mask = attention_mask.bool()[:, None]
        memory, _ = self.encoder(self.embedding(input_ids), None, source_mask)
        logits, *_ = self.decoder(
            self.embedding(decoder_input_ids),
            memory,
            encoder_hidden=None,
            src_mask=source_mask,
            unroll_steps=None,
            hidden=None,
            trg_mask=(decoder_input_ids != self.config.pad_token_id)[:, None],
        )
        return logits


PEERS: dict[str, type[Peer]] = {
    "marian": Marian,
    "torch": TorchTransformer,
    "x-transformers": XTransformers,
    "opennmt-py": OpenNMT,
    "joeynmt": JoeyNMT,
}


def num_matrix_weights(model: nn.Module) -> int:
    """Return the entries of all trained matrices, without biases and norms, in which systems differ."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad and weight.dim() > 1)


def find_peers(names: list[str], model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Return those of the peers `names` that can be built here, and why the others cannot.

    Raises:
        ValueError: if a peer's matrices are not as large as those of `model`.
    """
    found, missing = [], {}
    for name in names:
        try:
            peer = PEERS[name](model.config)
        except ImportError as error:
            missing[name] = str(error)
            continue
        ours, theirs = num_matrix_weights(model), num_matrix_weights(peer)
        if ours != theirs:
            raise ValueError(f"{name} has matrices of {theirs:,} entries, our model of {ours:,}: they do not compare.")
        found.append(name)
    return found, missing


def describe_peers(names: list[str]) -> str:
    """Return the peers `names` with their versions."""
    return ", ".join(f"{PEERS[name].label} of {PEERS[name].package} {version(PEERS[name].package)}" for name in names)
