"""Show and measure attention: maps, drawings (figures 3 to 5), an HTML page, scores of heads, word alignments."""

KINDS = {  # the three uses of attention in the model (section 3.2.3)
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}
VIEWS = KINDS | {"alignment": "Encoder-decoder attention of the word read"}  # what can be drawn
