"""Our names of the weights, and those that fairseq gave them and MarianMT took over."""

# In this order: the longer of two that begin alike comes first.
FAIRSEQ_NAMES = (
    (".self_attention.", ".self_attn."),
    (".self_attention_residual.norm.", ".self_attn_layer_norm."),
    (".cross_attention.", ".encoder_attn."),
    (".cross_attention_residual.norm.", ".encoder_attn_layer_norm."),
    (".feed_forward_residual.norm.", ".final_layer_norm."),
    (".feed_forward.", "."),
)


def fairseq_name(name: str) -> str:
    """The name inside the layers that fairseq and MarianMT have for our weight `name`."""
    for ours, theirs in FAIRSEQ_NAMES:
        name = name.replace(ours, theirs)
    return name
