"""All layers and heads of one sentence as a single page that needs no network.

write_html(collect_attention(model, tokenizer, sentence), "attention.html", title=sentence)
"""

import base64
import html
import json
from pathlib import Path
from string import Template

import numpy as np

from .attention_maps import KINDS, SIDES, AttentionMaps, head_colours

# A `string.Template`: no other dollar sign may stand in it. Its policy line lets the page load nothing at all.
TEMPLATE = Path(__file__).with_name("attention_page.html")


def write_html(maps: AttentionMaps, path: str | Path, title: str = "Attention") -> Path:
    """Write all layers and heads as one page that needs no network: choose layer, kind, heads and a word.

    Weights are stored in one byte each, 256 opacities: 6 layers, 8 heads and 30 words a side take 170 kB.
    """
    kinds = []
    for kind, name in KINDS.items():
        queries, keys, weights = maps.view(kind)
        as_bytes = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8).tobytes()
        kinds.append(
            {
                "name": name,
                "queries": queries,
                "keys": keys,
                "sides": [side.replace("output", "target as it is written") for side in SIDES[kind]],
                "layers": weights.shape[0],
                "heads": weights.shape[1],
                "colours": head_colours(weights.shape[1]),
                "weights": base64.b64encode(as_bytes).decode("ascii"),
            }
        )
    # In a script element only "<" can end the data; JSON reads \u003c as the same character.
    data = json.dumps(kinds, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(title=html.escape(title), data=data)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page.encode())
    return path
