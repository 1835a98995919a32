"""vLLM general plugin for small CPU-only test hosts.

1. NIXL's Python API hard-codes pthrDelay=0, and its UCX progress thread then spins on poll(..., 0).
   Give it a delay (NIXL_PTHR_DELAY_US, default 2000 us) so that an idle engine uses no CPU.
2. On CPU, vLLM's NIXL worker pins its main thread to the last core of the NUMA node; with several engines
   on one small host all of them land on the same core. NIXL_CPU_NO_PIN=1 (default) leaves affinity alone.
"""

import os


def register() -> None:
    """Called by vLLM in each of its processes, before the engine is made."""
    import vllm.distributed.nixl_utils as nu

    if getattr(nu, "_cpu_tamed", False):
        return
    nu._cpu_tamed = True
    orig_load = nu._load_nixl_attr

    def load(name):
        value = orig_load(name)
        if name == "NixlWrapper" and value is not None:
            import nixl._api as api

            bind = api.nixlBind
            if not getattr(bind, "_cpu_tamed", False):
                orig_agent = bind.nixlAgent
                delay = int(os.environ.get("NIXL_PTHR_DELAY_US", "2000"))

                def agent(agent_name, cfg):
                    cfg.pthrDelay = delay
                    return orig_agent(agent_name, cfg)

                bind.nixlAgent = agent
                bind._cpu_tamed = True
        return value

    nu._load_nixl_attr = load
    if os.environ.get("NIXL_CPU_NO_PIN", "1") == "1":
        from vllm.platforms import current_platform

        type(current_platform).discover_numa_topology = classmethod(lambda cls: [])
