"""What is remembered of one engine: its drain, looks, strikes, drift, restarts, and why it stands as it does."""

SILENT = float("-inf")


class Drain:
    """How far an engine is drained; part of an `Engine`, and of use while that is `draining`."""

    __slots__ = ("done", "life", "until_t")

    def __init__(self) -> None:
        self.done = False
        """Whether nothing runs on it any more, nor on KV that it holds: it can be stopped."""
        self.until_t = float("inf")
        """When what it still has then is served elsewhere, or ended."""
        self.life = ""
        """The generation with which the drain ends; empty: the operator ends it."""


class Vitals:
    """Part of an `Engine`; only the rules of health write it."""

    __slots__ = (
        "admitted",
        "alarms",
        "attested",
        "contract",
        "drift",
        "drift_out_t",
        "drift_over_t",
        "drift_t",
        "ejections",
        "form",
        "healthy",
        "late",
        "misses",
        "not_before_t",
        "reason",
        "seen_t",
        "since_t",
        "starts_t",
        "strikes",
        "struck_by",
        "struck_t",
        "tokens",
        "tokens_t",
    )  # fmt: skip

    def __init__(self) -> None:
        self.misses = 0
        """Looks in a row that failed."""
        self.healthy = 0
        """Looks in a row that did not."""
        self.seen_t = SILENT
        """When the last healthy look ended."""
        self.strikes = 0.0
        """Failures that count against it, as of `struck_t`; they decay (`strikes`)."""
        self.struck_t = SILENT
        self.struck_by = ""
        """Cause of the last one."""
        self.drift = 1.0
        """Decode interval over the profile's, a moving mean; 1 until it was measured."""
        self.drift_t = SILENT
        """When it was measured last."""
        self.drift_over_t = SILENT
        """Since when it is above what probation begins at; `SILENT`: it is not."""
        self.drift_out_t = SILENT
        """Since when it is above what ejection begins at; `SILENT`: it is not."""
        self.tokens = -1
        """Tokens that its metrics had counted when that number last rose; -1: not told."""
        self.tokens_t = SILENT
        """When it rose."""
        self.late = -1
        """Notifications about KV that it had freed already, as its metrics count them; -1: not told."""
        self.alarms = 0
        """Times that number rose: somebody read KV that was no longer the request's."""
        self.contract = ""
        """Fingerprint of the contract that it was last seen to run with; empty: not told."""
        self.form = ""
        """Form of its KV, as it was last told; empty: not told."""
        self.attested = ""
        """Digest that its sidecar attested with it; empty: not told."""
        self.admitted = ""
        """The last life that was let have work."""
        self.starts_t: list[float] = []
        """When new generations of it were seen, within the window of `recovery.restarts`."""
        self.ejections = 0
        """Ejections in a row on soft evidence; forgotten once it has served for a while."""
        self.not_before_t = SILENT
        """No readmission before this."""
        self.reason = ""
        """Why it is not live; empty while it is."""
        self.since_t = SILENT
        """Since when it stands as it does."""

    def begin_anew(self) -> None:
        """Another process: what was measured of the former one says nothing."""
        self.drift, self.tokens, self.late = 1.0, -1, -1
        self.drift_out_t = self.drift_over_t = SILENT
