"""Our names of the weights, and those of fairseq, which MarianMT uses too."""

# Of two with the same beginning the longer comes first.
FAIRSEQ_NAMES = (
    (".self_attention.", ".self_attn."),
    (".self_attention_residual.norm.", ".self_attn_layer_norm."),
    (".cross_attention.", ".encoder_attn."),
    (".cross_attention_residual.norm.", ".encoder_attn_layer_norm."),
    (".feed_forward_residual.norm.", ".final_layer_norm."),
    (".feed_forward.", "."),
)


def fairseq_name(name: str) -> str:
    """Return the name that fairseq and MarianMT have, inside the layers, for our weight `name`."""
    for ours, theirs in FAIRSEQ_NAMES:
        name = name.replace(ours, theirs)
    return name
