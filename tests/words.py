"""A tokenizer laid out like SentencePiece's: blanks are letters, and a text begins with one."""

from __future__ import annotations

import string

from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast


def sentencepiece(positions: int = 96) -> PreTrainedTokenizerFast:
    """A token for each letter and byte, and `<s>` before each text, as Llama 2 has it."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = ["▁", *sorted(set(string.printable) - {" "})]
    vocab = {name: number for number, name in enumerate([*names, *letters])}
    made = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    blank = decoders.Replace("▁", " ")
    parts = [blank, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocab["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=positions,
    )
