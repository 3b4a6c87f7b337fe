"""A byte-level tokenizer of exactly 512 entries, for the tiny model: every id decodes, every text encodes.

Ids 0-2 are the special tokens, 3-258 the 256 single bytes, 259-511 merged pairs. Single bytes are frequent in what a
random model emits, so characters of two or more bytes arrive split over tokens now and then.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, EOS = "<|endoftext|>", "<|im_end|>"
VOCAB_SIZE = 512
FIRST_BYTE_ID = len(SPECIAL)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_symbols() -> list[str]:
    """Return the printable character by which byte-level BPE writes each byte, indexed by the byte's value."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def _merges(symbol: list[str]) -> list[tuple[str, str]]:
    """Return the 253 merged pairs: space + letter, the two-letter syllables, and the first two-byte letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vowels = "aeiou"
    consonants = [c for c in letters if c not in vowels]
    pairs = [(symbol[ord(" ")], c) for c in letters]
    pairs += [(c, v) for c in consonants for v in vowels]
    pairs += [(v, c) for c in consonants for v in vowels]
    room = VOCAB_SIZE - len(SPECIAL) - 256 - len(pairs)
    # U+00E0 and up: lead byte 0xC3, continuation bytes from 0xA0
    pairs += [(symbol[0xC3], symbol[0xA0 + i]) for i in range(room)]
    return pairs


def build() -> PreTrainedTokenizerFast:
    """Build the tokenizer. It has `VOCAB_SIZE` entries, a chat template, a BOS and an EOS token, and adds none by itself."""
    symbol = byte_symbols()
    merges = _merges(symbol)
    entries = [*SPECIAL, *symbol, *(a + b for a, b in merges)]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(entries)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=BOS, clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCAB_SIZE:
        raise AssertionError(f"the tokenizer has {len(tokenizer)} entries, the model needs exactly {VOCAB_SIZE}")
    return tokenizer
