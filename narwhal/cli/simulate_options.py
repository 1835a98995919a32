"""The options of `narwhal simulate`: what each is called, and what its help says."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Admission(StrEnum):
    """How requests are admitted."""

    open = "open"
    predictive = "predictive"


FleetArgument = Annotated[
    Path | None, typer.Argument(help="Fleet file; without it, a profile and --engines are needed.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Policies, separated by commas; default: reactive,static; to tune: the file's."),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(help="Traffic of a trace: Azure 2023, BurstGPT or ServeGen CSV, Mooncake JSONL, own journal."),
]
MixOption = Annotated[
    str | None, typer.Option(metavar="MIX", help="Synthetic traffic instead of a trace, such as turning:code,reas:60.")
]
BodiesOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Folder of the Azure 2023 files to draw code and conv from.")
]
RateOption = Annotated[
    float | None,
    typer.Option(min=0.001, max=1e5, help="Requests per second; default: the trace's, else 70 % of what fits."),
]
SecondsOption = Annotated[
    float | None, typer.Option(min=40, max=1e6, help="Length; default: the whole trace, else 600.")
]
CompressOption = Annotated[float, typer.Option(min=0.001, max=1e6, help="Run the trace this many times as fast.")]
SeedsOption = Annotated[str, typer.Option(metavar="NUMBERS", help="Seeds, separated by commas.")]
GoodputOption = Annotated[
    bool, typer.Option("--goodput", help="Also search the highest rate at which 90 % meet both targets.")
]
CurvesOption = Annotated[
    str | None, typer.Option(metavar="NAME|FILE", help="Engine curves: a shipped profile's name, or a file.")
]
PriorOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="The engines have no profile: the controller learns, from this one."),
]
EnginesOption = Annotated[int | None, typer.Option(min=2, max=256, help="Number of engines, without a fleet file.")]
SplitOption = Annotated[str | None, typer.Option(metavar="SPLIT", help="Split at the start, such as 5p3d.")]
AdmissionOption = Annotated[Admission | None, typer.Option(help="Admission; default: the fleet file's.")]
ReplayOption = Annotated[
    Path | None,
    typer.Option(
        help="A router's events.jsonl: are its decisions reproduced? With --policy: what would others have done?"
    ),
]
PlotOption = Annotated[
    Path | None, typer.Option(help="Write split and attainment over time to this picture (needs the plots extra).")
]
TuneOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=LOW..HIGH",
        help="Search this parameter of the fleet file, such as controller.reactive.act_at=0.5..1; "
        "KEY=A,B for a list, KEY alone for a quarter to four times what it is. Repeat it for several.",
    ),
]
TuneOnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MIX|FILE|SEEDS",
        help="Traffic or seeds to tune on; default: --mix or --trace with --seeds. Repeatable.",
    ),
]
ReportOnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MIX|FILE|SEEDS",
        help="Other traffic or seeds to judge the best on; default: the same traffic, seeds from 21 on. Repeat it.",
    ),
]
BudgetOption = Annotated[int, typer.Option(min=2, help="Runs that the search may take; the report comes on top.")]
