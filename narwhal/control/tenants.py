"""Who asks: each tenant's limits, what it uses of them now, and what it has been served.

Everything is in tokens, prompt and completion alike: what a client is limited by, what it is charged, and what the
fair queues order by are one measure (ADR 0009). All of it costs O(1) for a request.
"""

from collections.abc import Iterable, Iterator

from narwhal.fleet.model import Priority, TenantLimits

PRIORITIES: tuple[Priority, ...] = ("interactive", "batch")
"""From the most urgent on; a rank is a place in here."""
PRIOR_TOKENS = 256
"""Completion tokens that a request is expected to produce before its tenant's requests have told."""
IDLE_S = 10.0
"""A tenant that was turned away within this time, in seconds, is not idle, whatever it has waiting."""
LEARN = 0.05
"""Weight of the latest request in a tenant's moving means."""


class Share:
    """What a tenant was served in one priority class, over its weight: the virtual time of its requests there.

    After VTC (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 4): prompts are charged
    when they are sent, completions as they are produced, so nothing has to be guessed.
    """

    __slots__ = ("account", "rank", "served", "turned_away_t", "weight")

    def __init__(self, account: "Account", rank: int, weight: float) -> None:
        self.account = account
        self.rank = rank
        self.weight = weight
        self.served = 0.0
        """Tokens over weight."""
        self.turned_away_t = float("-inf")
        """When the last of its requests came for which there was no capacity."""

    def begin(self, t: float, virtual: float) -> None:
        """A request comes while nothing of the share waits: if it was idle, it starts level with the others.

        One that is refused what it asks for has nothing waiting either, and keeps what it is behind.
        """
        if self.served < virtual and t - self.turned_away_t > IDLE_S:
            self.served = virtual

    def turned_away(self, t: float) -> None:
        """A request that came at `t` is refused for want of capacity."""
        if t > self.turned_away_t:
            self.turned_away_t = t

    def charge(self, tokens: int) -> None:
        """Count tokens that were served."""
        self.served += tokens / self.weight


class Account:
    """One tenant."""

    __slots__ = (
        "duration_s", "level", "level_t", "limited", "max_concurrency", "name", "open", "output_tokens", "portion",
        "priority", "rank", "shares", "tokens", "tokens_per_minute", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, limits: TenantLimits, portion: float = 1.0) -> None:
        self.open = 0
        """Its requests between arrival and end."""
        self.waiting = 0
        """Those of them that wait in the router for a prefill engine."""
        self.tokens = 0
        """Tokens it was served, prompts included."""
        self.level = float(limits.tokens_per_minute or 0)
        """What is left in its bucket of tokens; below 0: it used more than was expected."""
        self.level_t = float("-inf")
        """When the bucket was last looked at."""
        self.output_tokens = float(PRIOR_TOKENS)
        """Completion tokens of its requests, a moving mean."""
        self.duration_s = 0.0
        """Seconds from arrival to the end of its served requests, a moving mean."""
        self.shares = tuple(Share(self, rank, limits.weight) for rank in range(len(PRIORITIES)))
        self.configure(limits, portion)

    def configure(self, limits: TenantLimits, portion: float) -> None:
        """Take up limits. `portion` is its share of the places in the queue, by weight."""
        self.name, self.weight, self.priority = limits.name, limits.weight, limits.priority
        self.max_concurrency, self.tokens_per_minute = limits.max_concurrency, limits.tokens_per_minute
        self.rank = PRIORITIES.index(limits.priority)
        self.portion = portion
        self.limited = limits.max_concurrency is not None or limits.tokens_per_minute is not None
        self.level = min(self.level, float(limits.tokens_per_minute or 0))
        for share in self.shares:
            share.weight = limits.weight

    def share(self, priority: Priority | None) -> Share:
        """The share that a request belongs to: of its own priority, at most that of the tenant."""
        return self.shares[self.rank if priority is None else max(self.rank, PRIORITIES.index(priority))]

    def expected_tokens(self, prompt_tokens: int, max_tokens: int) -> int:
        """Tokens that a request will be served: its prompt, and what the tenant's requests produce in the mean."""
        output_tokens = int(self.output_tokens)
        return prompt_tokens + (max_tokens if max_tokens < output_tokens else output_tokens)

    def concurrency_wait_s(self) -> float | None:
        """Seconds until one of its requests is expected to end, while all it may have are open; None: one more may."""
        most = self.max_concurrency
        if most is None or self.open < most:
            return None
        return self.duration_s / self.open or 1.0

    def tokens_wait_s(self, t: float, tokens: int) -> float | None:
        """Seconds until its bucket holds `tokens`; None: it does. A full bucket lets any request pass."""
        rate = self.tokens_per_minute
        if rate is None:
            return None
        missing = min(tokens, rate) - self.level_at(t)
        return missing / (rate / 60.0) if missing > 0 else None

    def level_at(self, t: float) -> float:
        """What its bucket holds at `t`: it fills by its rate, to one minute's tokens at the most."""
        rate = self.tokens_per_minute
        if rate is None or t <= self.level_t or self.level_t == float("-inf"):
            return self.level
        return min(self.level + (t - self.level_t) * rate / 60.0, float(rate))

    def refill(self, t: float) -> None:
        """Let the bucket fill up to `t`."""
        if self.tokens_per_minute is not None and t > self.level_t:
            self.level, self.level_t = self.level_at(t), t

    def begin(self, prompt_tokens: int, max_tokens: int) -> int:
        """A request was let in: it takes its expected tokens, which are returned."""
        expected_tokens = self.expected_tokens(prompt_tokens, max_tokens)
        self.open += 1
        if self.tokens_per_minute is not None:
            self.level -= expected_tokens
        return expected_tokens

    def end(self, expected_tokens: int, used_tokens: int) -> None:
        """A request is over: the bucket gets back what was taken too much, or gives what is missing."""
        self.open -= 1
        self.tokens += used_tokens
        rate = self.tokens_per_minute
        if rate is not None:
            self.level = min(self.level + expected_tokens - used_tokens, float(rate))

    def learn(self, completion_tokens: int, seconds: float) -> None:
        """A request was served."""
        self.output_tokens += LEARN * (completion_tokens - self.output_tokens)
        self.duration_s += (LEARN if self.duration_s else 1.0) * (seconds - self.duration_s)


class Accounts:
    """The accounts by name. A name that is not configured gets one without limits and of weight 1."""

    def __init__(self) -> None:
        self._by_name: dict[str, Account] = {}
        self.configured: tuple[str, ...] = ()

    def configure(self, tenants: Iterable[TenantLimits]) -> None:
        """Take up the tenants of a fleet file. Accounts that are no longer there are kept for what they have open."""
        tenants = list(tenants)
        total = sum(tenant.weight for tenant in tenants)
        self.configured = tuple(tenant.name for tenant in tenants)
        for tenant in tenants:
            account = self._by_name.get(tenant.name)
            if account is None:
                self._by_name[tenant.name] = Account(tenant, tenant.weight / total)
            else:
                account.configure(tenant, tenant.weight / total)
        gone = [name for name, account in self._by_name.items() if name not in self.configured and not account.open]
        for name in gone:
            del self._by_name[name]

    def __getitem__(self, name: str) -> Account:
        account = self._by_name.get(name)
        if account is None:
            account = self._by_name[name] = Account(TenantLimits(name=name))
        return account

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_name.values())
