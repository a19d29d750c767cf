"""`walras simulate run`: from files to a report."""

from pathlib import Path

from rich.console import Console

from optimizer.policy import PolicySpec
from scheduler.core.policy_file import parse_policy
from scheduler.core.rules import RoundRules
from simulator.engine import Outcome
from simulator.measured import load_measured
from simulator.report import print_tables, summarise, to_json
from simulator.simulate import Scenario, simulate
from simulator.workload import load_experiment
from walras.config import load_mapping
from walras.errors import ConfigError

_FILE_ENDINGS = (".yaml", ".yml")


def load_policy(policy: str) -> tuple[PolicySpec, RoundRules]:
    """A policy by name (with its defaults and the default rules), or from a policy file."""
    if Path(policy).suffix in _FILE_ENDINGS:
        return parse_policy(load_mapping(policy))
    return parse_policy({"policy": {"name": policy}})


def run(
    workload_path: str,
    policy: str,
    cluster_path: str,
    seed: int,
    output: str,
    *,
    speeds_path: str | None = None,
    measured_path: str | None = None,
) -> int:
    """Simulate, print (`output` table or json), and answer the exit code: 0 if every job ended, else 1.

    Raises UserError for anything that the person can mend.
    """
    if output not in ("table", "json"):
        raise ConfigError(f"output {output!r} is not known", field="output", fix="choose table or json")
    spec, rules = load_policy(policy)
    measured = load_measured(measured_path) if measured_path is not None else None
    experiment = load_experiment(workload_path, cluster_path, speeds_path=speeds_path, measured=measured)
    scenario = Scenario(experiment.pools, experiment.truth, spec, rules, incidents=experiment.incidents, seed=seed)
    result = simulate(experiment.jobs, scenario)
    summary = summarise(result)
    console = Console()
    if output == "json":
        text = to_json(summary, [*result.jobs, *result.unfinished])
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print_tables(summary, console)
    return 0 if result.outcome is Outcome.STOPPED and not summary.violations else 1
