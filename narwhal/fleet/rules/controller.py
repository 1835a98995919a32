"""NW060 to NW064: spans, thresholds and switches of the role controller."""

from collections.abc import Iterator

from narwhal.fleet.facts import Facts
from narwhal.fleet.finding import Path
from narwhal.fleet.rules.rule import Hit, rule

_REACTIVE: Path = ("controller", "reactive")
_PROJECTION: Path = ("controller", "projection")


@rule(
    "NW060",
    "spans out of order",
    means="confirmations x step_s < evidence_span_s <= evidence_max_span_s <= window_s must hold: a departure is seen "
    "within the confirmation span, judged over the evidence span, against the window.",
    fix="Change the span that is named, or the one it is compared with.",
)
def spans_are_in_order(facts: Facts) -> Iterator[Hit]:
    """Confirmation span < evidence span <= longest evidence span <= window."""
    reactive = facts.fleet.controller.reactive
    confirmation_s = reactive.confirmations * reactive.step_s
    span, longest, window = reactive.evidence_span_s, reactive.evidence_max_span_s, reactive.window_s
    if confirmation_s >= span:
        text = f"evidence_span_s is {span:g}, and confirmations x step_s is {confirmation_s:g}"
        yield Hit((*_REACTIVE, "evidence_span_s"), text, f"more than {confirmation_s:g}", span)
    if span > longest:
        text = f"evidence_max_span_s is {longest:g}, and evidence_span_s is {span:g}"
        yield Hit((*_REACTIVE, "evidence_max_span_s"), text, f"at least {span:g}", longest)
    if longest > window:
        text = f"window_s is {window:g}, and evidence_max_span_s is {longest:g}"
        yield Hit((*_REACTIVE, "window_s"), text, f"at least {longest:g}", window)


@rule(
    "NW061",
    "thresholds crossed",
    means="The load at which a role may give an engine is not below the one at which it asks for one: engines would "
    "go to and fro.",
    fix="Make `shrink` less than `expand`.",
)
def thresholds_are_apart(facts: Facts) -> Iterator[Hit]:
    """`thresholds.shrink` is less than `thresholds.expand`."""
    thresholds = facts.fleet.controller.thresholds
    if thresholds.shrink >= thresholds.expand:
        text = f"shrink is {thresholds.shrink:g}, and expand is {thresholds.expand:g}"
        path = ("controller", "thresholds", "shrink")
        yield Hit(path, text, f"less than {thresholds.expand:g}", thresholds.shrink)


@rule(
    "NW062",
    "projection windows out of order",
    means="step_s <= short_window_s < window_s must hold: the short window is compared with the long one, and one that "
    "is shorter than a step misses arrivals.",
    fix="Change the window that is named.",
)
def projection_windows_are_in_order(facts: Facts) -> Iterator[Hit]:
    """Step <= short window < long window."""
    projection = facts.fleet.controller.projection
    short, long, step = projection.short_window_s, projection.window_s, projection.step_s
    if short >= long:
        text = f"short_window_s is {short:g}, and window_s is {long:g}"
        yield Hit((*_PROJECTION, "short_window_s"), text, f"less than {long:g}", short)
    if step > short:
        text = f"step_s is {step:g}, and short_window_s is {short:g}"
        yield Hit((*_PROJECTION, "step_s"), text, f"at most {short:g}", step)


@rule(
    "NW063",
    "overflow with admission",
    means="Overflow gives a decode engine the prompts that prefill cannot serve in time; predictive admission has "
    "refused them before, so it would never act.",
    fix="Switch `controller.projection.overflow` off, or use `serving.admission: open`.",
)
def overflow_is_without_admission(facts: Facts) -> Iterator[Hit]:
    """`projection.overflow` is on only with open admission."""
    if facts.fleet.controller.projection.overflow and facts.fleet.serving.admission == "predictive":
        text = "overflow is on, and admission is predictive"
        yield Hit((*_PROJECTION, "overflow"), text, "false, or open admission", True)


@rule(
    "NW064",
    "advisory without a controller",
    means="Advisory mode records what the controller would do, and the controller is off.",
    fix="Switch the controller on, or take `advisory` away.",
)
def advisory_needs_the_controller(facts: Facts) -> Iterator[Hit]:
    """`advisory` is on only while the controller is enabled."""
    controller = facts.fleet.controller
    if controller.advisory and not controller.enabled:
        yield Hit(("controller", "advisory"), "advisory is on, and the controller is off", "false", True)
