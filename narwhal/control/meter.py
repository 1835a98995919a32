"""What an engine without a profile shows of its speed, as samples to learn from."""

from narwhal.control.learning import Learned

TOGETHER = 0.25
"""A prompt that leaves this share of its own time after another left in the same step as that one."""
JITTER_S = 0.002
"""Answers of one step arrive within this, in seconds."""
MOST_PROMPTS = 4
"""Prompts of one sample on an engine that is never idle."""
LEAST_TOKENS = 8
"""Tokens that a stream must have had for its mean interval to say something."""


class Meter:
    """One engine's part of what is learned of its kind."""

    __slots__ = (
        "began_t", "ended_t", "kv_token_s", "learned", "prompts", "seen_t", "spoiled", "squares", "steps",
        "stream_s", "tokens",
    )  # fmt: skip

    def __init__(self, learned: Learned) -> None:
        self.learned = learned
        self.began_t = self.ended_t = 0.0
        """Begin of the sample under way, and when its last prompt left."""
        self.prompts = self.steps = self.tokens = self.squares = 0
        """Its prompts; steps in which some of them left; sums of their lengths, and of the squares of these."""
        self.spoiled = False
        """Whether the engine did something else meanwhile, so that they tell nothing."""
        self.seen_t = 0.0
        self.stream_s = 0.0
        """Streams on the engine, integrated over time."""
        self.kv_token_s = 0.0
        """Their KV tokens, integrated over time."""

    def prefilled(self, t: float, began_t: float, prompt_tokens: int, waiting: int) -> bool:
        """A prompt left at `t`, `waiting` others are there; it began at `began_t` at the earliest. True: a new sample.

        A step computes several short prompts, or the end of one and the beginning of the next. So a sample is all
        that an engine did from idle to idle: then it does not matter who shared which step.
        """
        if not self.prompts:
            self.began_t = began_t
        alone_s = max(TOGETHER * self.learned.curves.prefill_s(prompt_tokens), JITTER_S)
        self.steps += not self.prompts or t - self.ended_t >= alone_s
        self.ended_t = t
        self.prompts += 1
        self.tokens += prompt_tokens
        self.squares += prompt_tokens * prompt_tokens
        if waiting and self.prompts < MOST_PROMPTS:
            return False
        tells = not self.spoiled and t > self.began_t
        if tells:
            self.learned.prefilled(self.steps, self.tokens, self.squares, t - self.began_t)
        self.begin_anew()
        return tells

    def begin_anew(self) -> None:
        """Nobody will say when the prompts of the sample under way leave."""
        self.prompts = self.steps = self.tokens = self.squares = 0
        self.spoiled = False

    def watch(self, t: float, streams: int, kv_tokens: int) -> None:
        """The engine had so many streams with so much KV from the last call until `t`."""
        elapsed_s, self.seen_t = t - self.seen_t, t
        self.stream_s += elapsed_s * streams
        self.kv_token_s += elapsed_s * kv_tokens
