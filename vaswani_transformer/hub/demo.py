"""A page to try a model: enter a sentence, see its translations with scores, and the attention of each.

    serve(build_page(Demo(model, tokenizer), name="base"), host="127.0.0.1", port=7860)

The answer is HTML made here, with all text in it escaped; Gradio only carries it.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention.maps import collect_attention_batch, show_codes
from ..attention.page import build_html
from ..model.generation_vaswani import Search
from ..model.pipeline_vaswani import check_sentence
from ..model.search_vaswani import LENGTH_PENALTIES
from ..translation.translator import Translator

MOST_CHARACTERS = 1_000
MOST_TOKENS = 128  # per side: 6 layers of 8 heads take 3 MB, or twice that with sub-words
MOST_BEAMS = 10
MOST_WAITING = 32  # sentences; further visitors are told that the page is busy
MOST_SESSIONS = 100  # visitors whose page is remembered, each with the attention it shows: 7 MB of the longest sentence
STYLE = """<style>
.translations { color: var(--body-text-color); overflow-x: auto; }
.translations table { border-collapse: collapse; width: 100%; }
.translations th, .translations td { padding: 0.4rem 0.75rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--border-color-primary); }
.translations td { font-variant-numeric: tabular-nums; }
.translations .text { text-align: start; white-space: normal; overflow-wrap: anywhere; width: 100%; min-width: 8rem; }
.translations p { margin: 0.75rem 0 0; max-width: 60rem; line-height: 1.5; }
.translations [role="alert"] { border-left: 4px solid var(--color-accent); padding: 0.5rem 0.75rem; }
</style>"""


@dataclass(frozen=True)
class Translation:
    """A hypothesis of the search."""

    text: str
    token_ids: list[int]  # up to and with `</s>`
    log_prob: float  # log P(Y | X) in nats
    score: float  # the search ranks by it; log P / lp


@dataclass(frozen=True)
class Answer:
    """The answer of the page to a sentence: translations, best first, or the reason why there are none."""

    source_ids: list[int] = field(default_factory=list)
    translations: list[Translation] = field(default_factory=list)
    html: str = ""


class Demo:
    """The content of the page, as HTML, for a `VaswaniForConditionalGeneration` and its tokenizer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer = model, tokenizer
        self.translator = Translator(model, tokenizer)  # the model stays, for its attention weights
        self.most_tokens = min(MOST_TOKENS, tokenizer.model_max_length)  # training saw no longer ones
        self.num_beams = min(MOST_BEAMS, model.generation_config.num_beams or 1)

    def answer(self, text: str, num_beams: int) -> Answer:
        """Return the translations of `text`, at most as many as beams, or the reason why there are none."""
        try:
            source_ids = self._read(text)
            translations = self.translate(source_ids, num_beams)
        except ValueError as error:
            message = str(error)
            return Answer(html=_wrap(f'<p role="alert">{escape(message[:1].upper() + message[1:])}</p>'))
        return Answer(source_ids, translations, self._describe(translations))

    def _read(self, text: str) -> list[int]:
        """Return the token ids of the sentence.

        Raises:
            ValueError: if there is no sentence, or one too long.
        """
        check_sentence(text)
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"This page takes up to {MOST_CHARACTERS:,} characters, not {len(text):,}.")
        sentence = " ".join(text.split())  # line breaks are spaces
        if not sentence:
            raise ValueError("There is nothing to translate yet: write a sentence.")
        # verbose=False: transformers would warn of indexing errors, which sinusoidal positions exclude.
        source_ids = self.tokenizer(sentence, verbose=False).input_ids
        if len(source_ids) > self.most_tokens:
            raise ValueError(f"This page takes up to {self.most_tokens} sub-words, not {len(source_ids)}.")
        return source_ids

    def translate(self, source_ids: Sequence[int], num_beams: int) -> list[Translation]:
        """Return what a search with `num_beams` beams finds, best first, each text once with its best score.

        Raises:
            ValueError: if `num_beams` is not 1 to `MOST_BEAMS`.
        """
        if num_beams not in range(1, MOST_BEAMS + 1):
            raise ValueError(f"The beam is 1 to {MOST_BEAMS} hypotheses wide, got {num_beams}.")
        num_beams = int(num_beams)
        found = self.translator.search([list(source_ids)], num_beams=num_beams, num_return_sequences=num_beams)
        search, tokens = Search.resolve(self.model.generation_config), found.sequences[:, 1:]
        lengths = (tokens != self.tokenizer.pad_token_id).sum(dim=-1)
        log_probs = found.sequences_scores * search.penalise(lengths)
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        columns = (texts, tokens.tolist(), *(x.tolist() for x in (lengths, log_probs, found.sequences_scores)))
        translations: dict[str, Translation] = {}  # several sequences of sub-words may spell one text
        for text, token_ids, length, log_prob, score in zip(*columns, strict=True):
            if length:  # missing hypotheses are padding
                translations.setdefault(text, Translation(text, token_ids[:length], log_prob, score))
        return list(translations.values())

    def show_attention(self, answer: Answer, index: int) -> str:
        """Return the page of attention of translation `index` (from 0), in a frame; empty without a translation."""
        if not answer.translations:
            return ""
        token_ids = answer.translations[index].token_ids
        maps = collect_attention_batch(self.model, self.tokenizer, [answer.source_ids], [token_ids])[0]
        words = maps.by_words()
        page = build_html(maps, f"What translation {index + 1} was written from", kind="cross")
        # 1.6rem per word, and the controls above, which take more lines on a small screen. A frame that is too small,
        # as for sub-words, scrolls.
        words_height = 1.6 * max(len(words.output_tokens), len(words.source_tokens))
        return (
            f'<iframe sandbox="allow-scripts" title="Attention weights" srcdoc="{html.escape(page)}" '
            f'style="width: 100%; height: calc({words_height:.1f}rem + clamp(15rem, 30rem - 20vw, 26rem)); border: 0">'
            f"</iframe>"
        )

    def _describe(self, translations: Sequence[Translation]) -> str:
        """Return the translations as a table, with an explanation of its figures."""
        rows = "".join(
            f'<tr><td>{number}</td><td class="text" dir="auto">{escape(translation.text) or "<i>nothing</i>"}</td>'
            f"<td>{translation.score:.3f}</td><td>{translation.log_prob:.3f}</td>"
            f"<td>{len(translation.token_ids)}</td></tr>"
            for number, translation in enumerate(translations, start=1)
        )
        return _wrap(
            f'<table><thead><tr><th>rank</th><th class="text">translation</th><th>score</th><th>log P</th>'
            f"<th>tokens</th></tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{self.explain_score()}</p>"
        )

    def explain_score(self) -> str:
        """Explain the columns of the table, by the settings of the search."""
        search = Search.resolve(self.model.generation_config)
        penalty = f"{LENGTH_PENALTIES[search.length_penalty_type].base}<sup>{search.length_penalty:g}</sup>"
        return (
            f"<b>log P</b> is the natural logarithm of the probability that the model gives the whole translation: 0 "
            f"would be certain. <b>tokens</b> are its sub-words, the end of the sentence included. The <b>score</b>, "
            f"log P / {penalty}, ranks them: the higher, the better."
        )


def _wrap(content: str) -> str:
    return f'{STYLE}<div class="translations">{content}</div>'


def escape(text: str) -> str:
    """Return `text` as HTML that shows it, with a code for each invisible character."""
    return html.escape(show_codes(text))


def build_page(demo: Demo, *, name: str, languages: Sequence[str] | None = None):
    """Build the page as `gradio.Blocks`.

    Args:
        name: of the model, as the page shows it.
        languages: codes of source and target, if known.
    """
    import gradio as gr  # takes seconds

    direction = f" {languages[0]} to {languages[1]}" if languages else ""
    # One at a time: attention is collected by switching the kernel of the model and back.
    alone = {"concurrency_id": "model", "concurrency_limit": 1, "api_visibility": "private"}

    def translate(text: str, num_beams: int):
        answer = demo.answer(text, num_beams)
        ranks = list(range(1, len(answer.translations) + 1))
        chooser = gr.Radio(choices=ranks, value=1 if ranks else None, visible=bool(ranks))
        return answer.html, answer, chooser, demo.show_attention(answer, 0)

    def choose(answer: Answer, rank: int) -> str:
        return demo.show_attention(answer, rank - 1)

    with gr.Blocks(title=f"Translate with {name}", analytics_enabled=False) as page:
        gr.HTML(f"<h1>Translate{escape(direction)} with {escape(name)}</h1>")
        info = f"One sentence of up to {MOST_CHARACTERS:,} characters; Enter translates it."
        text = gr.Textbox(label="Sentence", info=info, lines=1, max_lines=6, autofocus=True)
        info = "Hypotheses that the search keeps at every step, and at most as many translations."
        num_beams = gr.Slider(1, MOST_BEAMS, demo.num_beams, step=1, label="Beam", info=info)
        button = gr.Button("Translate", variant="primary")
        translations = gr.HTML(elem_id="translations", apply_default_css=False)
        rank = gr.Radio(label="Show the attention of translation", visible=False, elem_id="rank")
        attention = gr.HTML(elem_id="attention")
        answer = gr.State(Answer())
        outputs = [translations, answer, rank, attention]
        gr.on([text.submit, button.click], translate, inputs=[text, num_beams], outputs=outputs, **alone)
        rank.input(choose, inputs=[answer, rank], outputs=attention, **alone)
    # api_open=True would let requests skip the queue, and with it "one at a time".
    page.queue(api_open=False, max_size=MOST_WAITING)
    return page


def serve(page, *, host: str, port: int) -> None:
    """Serve the page at `host` and `port` until Ctrl+C; raise an OSError if that address cannot be used."""
    import gradio as gr
    from starlette.middleware import Middleware  # comes with Gradio
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # Against DNS rebinding, by which the page of another server could read the one of this machine.
    loopback = ["127.0.0.1", "localhost", "::1", "[::1]"]
    names = loopback if host in loopback else ["*"]
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])  # not fetched
    theme.set(block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300")  # Gradio's are too pale
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        max_file_size=1,  # no uploads
        state_session_capacity=MOST_SESSIONS,
        app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names)]},
        theme=theme,
    )
    print(f"{address}  (Ctrl+C ends it)", flush=True)
    page.block_thread()
