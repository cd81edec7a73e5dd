"""Translate our names of weights to the names of fairseq, which MarianMT uses, too."""

# Our part of a name, and fairseq's. If two parts begin in the same way, the longer one comes first.
FAIRSEQ_NAMES = (
    (".self_attention.", ".self_attn."),
    (".self_attention_residual.norm.", ".self_attn_layer_norm."),
    (".cross_attention.", ".encoder_attn."),
    (".cross_attention_residual.norm.", ".encoder_attn_layer_norm."),
    (".feed_forward_residual.norm.", ".final_layer_norm."),
    (".feed_forward.", "."),
)


def fairseq_name(name: str) -> str:
    """Return the name that fairseq and MarianMT use for our weight `name`, if it is a weight of a layer."""
    for ours, theirs in FAIRSEQ_NAMES:
        name = name.replace(ours, theirs)
    return name
