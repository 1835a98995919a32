"""The engine rows on real vLLM on this machine's CPU: one fleet, on which they are played one after the other."""

from narwhal.drills.drill import UnavailableError
from narwhal.drills.plan import Plan
from narwhal.engine.cpu import PACKAGE, NotInstallableError, PrepareError, Say, prepare

_BLOCK_TOKENS = 32
_KV_BYTES = 64 << 20


def real_plan(say: Say) -> Plan:
    """One prefill and two decode engines; installs what they need first. Raises `UnavailableError`.

    They share the cores with all else, so looks have more patience than they would be given in earnest.
    """
    try:
        engine = prepare(say)
    except (NotInstallableError, PrepareError) as error:
        raise UnavailableError(f"real engines: {error}") from None
    return Plan(
        engines=3,
        prefill=1,
        seats=16,
        model_path=str(engine.model),
        runtime={"kind": "venv", "package": PACKAGE, "path": str(engine.environment), "device": "cpu"},
        args={"block-size": _BLOCK_TOKENS, "kv-cache-memory-bytes": _KV_BYTES},
        slo={"ttft_s": 12.0, "tpot_s": 5.0},
        serving={"admission": "open", "deadlines": {"prefill_s": 0, "first_token_s": 0, "gap_s": 0}},
        recovery={"probe_timeout_s": 5, "eject_after": 2, "readmit_backoff_s": 0.5, "canary": {"share": 0}},
    )
