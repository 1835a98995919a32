from hypothesis import given
from hypothesis import strategies as st

from narwhal.engine.simulated.tokenizer import EOS, VOCABULARY_SIZE, WORD_TOKENS, decode, encode


@given(st.text())
def test_any_text_comes_back_unchanged(text: str) -> None:
    tokens = encode(text)
    assert decode(tokens) == text
    assert all(0 <= token < VOCABULARY_SIZE and token != EOS for token in tokens)


def test_common_words_are_one_token() -> None:
    assert len(encode(" the water of the world")) == 5


def test_half_a_character_is_a_replacement_character() -> None:
    assert decode(encode("ü")[:1]) == "\ufffd"


def test_answers_are_made_of_words() -> None:
    assert len(WORD_TOKENS) > 400
    assert all(decode([token]).strip().isalpha() for token in WORD_TOKENS)
