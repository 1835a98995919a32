"""How engines are asked: where each listens, the key it wants, and how its certificate is verified."""

import os

from narwhal.fleet import Expanded
from narwhal.fleet.secrets import SecretError, read_secret
from narwhal.fleet.trust import TrustError, engine_context
from narwhal.profiling.client import EngineError, EngineUrl


def engine_urls(expanded: Expanded) -> dict[str, EngineUrl]:
    """How each engine of a fleet is asked, by its id. Raises `EngineError` for a key or authority that is not there."""
    engines = expanded.fleet.engines
    any_tls = any(spec.url.startswith("https:") for spec in expanded.engines)
    name = engines.tls.server_name if engines.tls else None
    try:
        key = read_secret(engines.api_key, "engines.api_key", os.environ) if engines.api_key else ""
        context = engine_context(engines.tls) if any_tls else None
    except (SecretError, TrustError) as error:
        raise EngineError(str(error)) from None
    return {spec.id: EngineUrl(spec.id, spec.url, key, context, name) for spec in expanded.engines}
