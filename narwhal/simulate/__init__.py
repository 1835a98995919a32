"""What would happen: a discrete-event fleet that drives the controller that serves.

`prepare` makes a scenario of what a user asks for, `compare` runs policies on it side by side, `replay` runs a
router's own events through control again, `answer` searches parameters of the controller. The engine model stands in
`engine.py`, the event loop in `simulation.py`.
"""

from narwhal.simulate.bodies import TrafficError
from narwhal.simulate.compare import Figures, compare, table
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.faults import Fault
from narwhal.simulate.fluid import work_of
from narwhal.simulate.parameters import TuneError
from narwhal.simulate.plot import PlotError, check_plot, draw
from narwhal.simulate.policies import Policy, PolicyError, parse_policy, with_split
from narwhal.simulate.prepare import Ask, Prepared, prepare
from narwhal.simulate.recording import ReplayError, steps_around
from narwhal.simulate.replay import recorded_scenario, replay, settings_document
from narwhal.simulate.scenario import Outcome, Scenario, goodput, passes, run
from narwhal.simulate.score import TARGET, UNSCORED_S, WINDOW_S
from narwhal.simulate.setup import CurvesSource, fleet_engines, known_curves, mix_traffic, plain_engines, plain_settings
from narwhal.simulate.simulation import Simulation
from narwhal.simulate.traces import TraceError, at_rate, compressed, first_seconds, read_trace
from narwhal.simulate.tune import Tuned
from narwhal.simulate.tune_report import tuned_data, tuned_text
from narwhal.simulate.tuning import TuneAsk, answer
from narwhal.simulate.workload import Workload

__all__ = [
    "TARGET",
    "UNSCORED_S",
    "WINDOW_S",
    "Ask",
    "CurvesSource",
    "EngineSetup",
    "Fault",
    "Figures",
    "Outcome",
    "PlotError",
    "Policy",
    "PolicyError",
    "Prepared",
    "ReplayError",
    "Scenario",
    "Simulation",
    "TraceError",
    "TrafficError",
    "TuneAsk",
    "TuneError",
    "Tuned",
    "Workload",
    "answer",
    "at_rate",
    "check_plot",
    "compare",
    "compressed",
    "draw",
    "first_seconds",
    "fleet_engines",
    "goodput",
    "known_curves",
    "mix_traffic",
    "parse_policy",
    "passes",
    "plain_engines",
    "plain_settings",
    "prepare",
    "read_trace",
    "recorded_scenario",
    "replay",
    "run",
    "settings_document",
    "steps_around",
    "table",
    "tuned_data",
    "tuned_text",
    "with_split",
    "work_of",
]
