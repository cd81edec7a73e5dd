"""Translate our names of weights to the names of fairseq, which MarianMT uses, too."""

# A part of our name, and what fairseq has in its place.
FAIRSEQ_NAMES = (
    (".self_attention.", ".self_attn."),
    (".self_attention_residual.norm.", ".self_attn_layer_norm."),
    (".cross_attention.", ".encoder_attn."),
    (".cross_attention_residual.norm.", ".encoder_attn_layer_norm."),
    (".feed_forward_residual.norm.", ".final_layer_norm."),
    (".feed_forward.", "."),
)


def fairseq_name(name: str) -> str:
    """Return the name of fairseq and MarianMT for our weight `name`. Names outside of the layers stay as they are."""
    for ours, theirs in FAIRSEQ_NAMES:
        name = name.replace(ours, theirs)
    return name
