"""`narwhal engine`: engine processes."""

from typing import Annotated, Any

import typer

from narwhal.cli.app import app, verb
from narwhal.cli.output import CommandError, Problem, Result

group = typer.Typer(
    name="engine",
    help="Engine processes: render, check, run, attest, examine, digest, simulate.\n\n"
    "Example: narwhal engine simulate --port 8100 --side-channel-port 5600",
    short_help="Engine processes: render, check, run, attest, examine, digest, simulate.",
    no_args_is_help=True,
)
app.add_typer(group)

FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help='A fault from the start on, as JSON: {"kind": "slow", "factor": 3, "duration_s": 10}. Kinds: crash, hang '
        "(scope all|prefill|decode), slow (factor), refuse, status (code, leg 1|2), cut_stream (after_tokens), "
        "corrupt_kv (side producer|consumer), drop_peer (engine). count and duration_s limit it. May be repeated; "
        "POST, GET and DELETE /simulate/faults do the same while it runs.",
    ),
]


@verb("simulate", group=group, short_help="Run a simulated engine, without a GPU.")
def simulate(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port; 0: any.")] = 8100,
    side_channel_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for KV; 0: any.")] = 5600,
    side_channel_host: Annotated[str | None, typer.Option(help="Address for peers; default: --host.")] = None,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "simulated",
    alias: Annotated[list[str] | None, typer.Option("--alias", help="A further name of it; may be repeated.")] = None,
    profile: Annotated[str, typer.Option(help="Timing: a shipped profile's name, or a path.")] = "demo",
    speed: Annotated[float, typer.Option(min=0.001, help="Factor on all speeds: 2 halves every time.")] = 1.0,
    max_model_len: Annotated[int, typer.Option(min=1, help="Longest prompt plus output, in tokens.")] = 16384,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most requests in a batch; default: profile.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in a step; default: profile.")
    ] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens of a block of KV; default: profile.")] = None,
    kv_lease_s: Annotated[float, typer.Option(min=0.1, help="How long KV is kept for another engine.")] = 30.0,
    bandwidth_bytes_per_s: Annotated[
        float | None, typer.Option(min=1, help="Bandwidth of handoffs; default: profile.")
    ] = None,
    stream_interval: Annotated[int, typer.Option(min=1, help="Tokens in a chunk of a stream.")] = 1,
    max_num_queued_reqs: Annotated[int | None, typer.Option(min=1, help="Most requests; one more gets 503.")] = None,
    shutdown_timeout: Annotated[float, typer.Option(min=0, help="Seconds that streams go on after SIGTERM.")] = 0.0,
    keep_alive_s: Annotated[float, typer.Option(min=0.1, help="How long an idle connection stays open.")] = 5.0,
    enable_prompt_tokens_details: Annotated[
        bool, typer.Option("--enable-prompt-tokens-details", help="Tell cached tokens in usage.")
    ] = False,
    enable_request_id_headers: Annotated[
        bool, typer.Option("--enable-request-id-headers", help="Answer with X-Request-Id.")
    ] = False,
    fault: FaultOption = None,
) -> Result:
    """Run a simulated engine: vLLM's HTTP dialect, KV handoffs and timing, without a GPU, until Ctrl-C.

    Example: narwhal engine simulate --port 8100 --side-channel-port 5600 --profile demo
    """
    return _serve(
        profile,
        host=host,
        port=port,
        side_channel_host=side_channel_host,
        side_channel_port=side_channel_port,
        model=model,
        aliases=tuple(alias or ()),
        speed=speed,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        kv_lease_s=kv_lease_s,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        stream_interval=stream_interval,
        max_num_queued_reqs=max_num_queued_reqs,
        shutdown_timeout_s=shutdown_timeout,
        keep_alive_s=keep_alive_s,
        prompt_tokens_details=enable_prompt_tokens_details,
        request_id_headers=enable_request_id_headers,
        faults=tuple(fault or ()),
    )


def _serve(profile: str, **options: Any) -> Result:
    """Run the engine, with its errors as the command's."""
    from narwhal.engine.simulated import Settings, SettingsError, serve
    from narwhal.fleet import ProfileError, load_profile

    try:
        timing = load_profile(profile)
        if (block_size := options.pop("block_size")) is not None:
            timing = timing.model_copy(update={"block_tokens": block_size})
        limits = {key: options.pop(key) or getattr(timing, key) for key in ("max_num_seqs", "max_num_batched_tokens")}
        serve(Settings(profile=timing, **limits, **options))
    except (ProfileError, SettingsError) as error:
        raise CommandError(Problem("engine_settings", str(error), hint="narwhal engine simulate --help")) from None
    except OSError as error:
        hint = "choose another --port or --side-channel-port"
        problem = Problem("engine_listen", f"cannot listen on {options['host']}: {error}", hint=hint)
        raise CommandError(problem, status="failed") from None
    return Result()
