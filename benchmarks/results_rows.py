"""Which figures docs/results.md shows: those that matter to somebody who decides whether to trust the system."""

from dataclasses import dataclass

from benchmarks.result_files import WHOLE


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the page.

    `figures` are names of figures (`Measured.named`), or their beginnings where the rest says what a run found; behind
    a `|` stands what is shown before the value. `table` is a part of the title of the table that holds them.
    """

    what: str
    name: str
    figures: tuple[str, ...]
    row: str = WHOLE
    table: str = ""
    needs: str = ""


_EVENTS = ("JCT of all jobs|JCT", "x against Gavel's record|x", "worst slowdown|slowdown")
_ROUNDS = ("x against Gavel's record|x", "worst slowdown|slowdown")
_LOAD = ("JCT against max-min", "worst slowdown", "worst slowdown under max-min")
_HADAR = ("fifo: JCT", "las: JCT", "hadar: JCT", "walras: JCT")
_SLOW = "slow machines have prices, against: no machine is ever called slow"
_RULE = "as shipped, against: all work repays a lease"
_COST = "planned: cost of on demand alone, mean"
_HELD = ("starts: held|starts", "starts: width over naive, mean|width", "ends: held|ends")
_ABOVE = "mean completion time above the bound, mean"

SECTIONS: dict[str, tuple[Row, ...]] = {
    "The whole system": (
        Row("Demo, twelve PyTorch jobs: duration; rank starts", "commands", ("from start", "rank starts"), "demo"),
        Row("Demo simulated again: median error of JCT", "commands", ("completion times simulated",), "demo"),
        Row(
            "Processes killed and frozen, 20 min: jobs lost",
            "faults",
            ("jobs lost", "jobs submitted|of"),
            "kills",
            needs="dev",
        ),
        Row(
            "The same: attempts started twice; false NODE_LOST",
            "faults",
            ("attempts started", "false"),
            "kills",
            needs="dev",
        ),
        Row(
            "Connections cut, 30 min: jobs lost; restarted",
            "faults",
            ("jobs lost", "jobs with more"),
            "connections",
            needs="dev",
        ),
        Row(
            "Fault simulation: seeds that broke a promise", "commands", ("seeds that", "seeds|of"), "fuzz", needs="dev"
        ),
        Row(
            "Planted bugs that the simulation finds", "commands", ("found", "bugs planted|of"), "mutations", needs="dev"
        ),
        Row(
            "Leader killed 30 times: jobs lost; next leads, median",
            "standby",
            ("acknowledged", "another leads and answers, median"),
            "kills",
            needs="PostgreSQL",
        ),
        Row(
            "Submits, PostgreSQL over SQLite",
            "standby",
            ("PostgreSQL beside SQLite: submits",),
            "submits",
            needs="PostgreSQL",
        ),
    ),
    "The server": (
        Row(
            "Durable submits: one client; 32 clients; batches",
            "server",
            ("one client: submits", "32 clients: submits", "one client, batches: submits"),
        ),
        Row("GET /jobs, 10,000 waiting: p50; p99", "server", ("GET /jobs, 50 jobs: p50", "GET /jobs, 50 jobs: p99")),
        Row("1,000 quiet agents: share of a processor", "server", ("share of one processor",)),
        Row("Restart with 10,000 active jobs", "server", ("restart with all",)),
        Row(
            "1,000 working machines, 10,000 active jobs: starts; heartbeat p99",
            "working",
            ("starts", "heartbeat with reports"),
        ),
        Row("The same: memory growth; longest piece in the loop", "working", ("its growth", "longest piece")),
        Row("API p99 beside 1,024 connections without a token, over quiet", "crowd", ("times the quiet",)),
        Row("SchedulerCore.handle, 10,000 active jobs", "core", ("mean",)),
        Row(
            "Web page, 10,000 jobs: first view; drawn",
            "web",
            ("first view: files, compressed / with", "first view: files, compressed / drawn"),
            needs="Chromium",
        ),
        Row("Checkpoint of 1 GiB: up; down", "checkpoints", ("up", "down"), needs="torch"),
        Row("Sums over 37,730 charges by job", "ledger", ("`money",)),
        Row(
            "Report over 10,000 jobs with its bound: mean; worst",
            "report",
            ("a report, mean", "a report, worst"),
            "time",
        ),
        Row("Bounds in hindsight that some policy beat", "report", ("bounds that", "journals|of"), "journals-1"),
    ),
    "Decisions": (
        Row(
            "Max-min, 10,000 jobs in 300 kinds x 20 columns: median",
            "policies",
            ("problem to decision, median",),
            table="daily",
        ),
        Row("Max-min, 10,000 different jobs x 8 pools", "policies", ("max_min_fairness",), table="own speeds"),
        Row("Proportional fairness, the same", "policies", ("proportional_fairness",), table="own speeds"),
        Row(
            "Finish-time fairness; makespan, the same",
            "policies",
            ("finish_time_fairness", "makespan"),
            table="own speeds",
        ),
        Row("Water filling; hierarchical, the same", "policies", ("water_filling", "hierarchical"), table="own speeds"),
        Row(
            "Max-min, 32,768 x 8: times faster than cvxpy",
            "policies",
            ("max_min_fairness: ours / times",),
            table="plain",
        ),
        Row(
            "Prices, 1,000,000 x 16: max-min; throughput; Nash",
            "prices",
            (
                "max-min, 1,000,000 x 1 columns, 16",
                "throughput, 1,000,000 x 1 columns, 16",
                "Nash, 1,000,000 x 1 columns, 16",
            ),
            table="million",
        ),
        Row("Random markets not certified by prices", "prices", ("not certified",), table="grid"),
        Row("One job comes or goes, 10,000 x 8", "update", ("max-min: event, median",)),
        Row(
            "Soroush's 8,192 jobs: mean; slowest seed",
            "optimizer",
            (
                "Soroush's generator, 3 types, 8,192 jobs, mean",
                "Soroush's generator, 3 types, 8,192 jobs, mean / the slowest",
            ),
            needs="data",
        ),
        Row(
            "DeDe's example, 200 jobs: mean; slowest seed",
            "optimizer",
            ("DeDe's example, 10 types, 200 jobs, mean", "DeDe's example, 10 types, 200 jobs, mean / the slowest"),
            needs="data",
        ),
        Row("`walras`, 200 jobs x 3", "grounds_deciding", ("200 jobs of 3 configurations, one",)),
        Row(
            "`walras`, 10,000 jobs x 20: singles; gangs",
            "grounds_deciding",
            ("10,000 jobs of 20 configurations, one", "10,000 jobs of 20 configurations, gangs"),
        ),
        Row(
            "The same gangs with guarantees that bind",
            "grounds_deciding",
            ("10,000 jobs of 20 configurations, gangs, guarantees",),
        ),
        Row(
            "First decision of a process, 20 gangs", "first_decision", ("as shipped, cached: decision",), table="fresh"
        ),
    ),
    "The simulator": (
        Row("1,000,000 jobs, 10,000 accelerators, fifo", "simulator", ("1,000,000 jobs",)),
        Row("Philly, 82,247 jobs, fifo", "simulator", ("the run",), table="strict", needs="data"),
        Row("Philly, least attained service", "simulator", ("the run",), table="least attained", needs="data"),
        Row("Philly on three types, max-min", "simulator", ("the run",), table="aware max-min re-solved", needs="data"),
        Row("Gavel's 900 gangs under `walras`", "simulator", ("the run",), table="gangs of one", needs="data"),
        Row(
            "Gavel's rounds, times faster than recorded", "simulator", ("faster than",), table="mechanism", needs="data"
        ),
        Row(
            "Philly by command, JSON; memory",
            "commands",
            ("the command", "peak memory"),
            "philly",
            needs="data",
        ),
        Row("Sweep on two processes, times faster", "sweep", ("speed-up",)),
    ),
    "`walras` on others' grounds": (
        Row("Gavel static, at events", "grounds_traces", _EVENTS, "static-events", needs="data"),
        Row("single_small, at events", "grounds_traces", _EVENTS, "small-events", needs="data"),
        Row("single_small, weights, at events", "grounds_traces", _EVENTS, "weighted-events", needs="data"),
        Row("multi_small, gangs, at events", "grounds_traces", _EVENTS, "gangs-events", needs="data"),
        Row("single_big, at events", "grounds_traces", _EVENTS, "big-events", needs="data"),
        Row(
            "Gavel multi_small by `walras simulate compare`: JCT; worst slowdown",
            "commands",
            ("mean completion", "worst slowdown"),
            "gangs",
            needs="data",
        ),
        Row("Gavel static, Gavel's rounds", "grounds_traces", _ROUNDS, "static-rounds", needs="data"),
        Row("Singles, load .6: JCT; slowdown; max-min's", "grounds_loads", _LOAD, "single-0.6", needs="data"),
        Row("Singles, load .95: the same", "grounds_loads", _LOAD, "single-0.95", needs="data"),
        Row(
            "Gangs, load .8: x, and its bound",
            "grounds_loads",
            ("x, mean", "least x|bound"),
            "gangs-bound-0.8",
            needs="data",
        ),
        Row(
            "Starts of 60; 180 s: JCT",
            "grounds_conditions",
            ("a start takes 60 s", "a start takes 180 s"),
            "static-starts",
            needs="data",
        ),
        Row(
            "Lengths wrong by up to 2: more JCT",
            "grounds_conditions",
            ("lengths wrong",),
            "gangs-lengths",
            needs="data",
        ),
        Row(
            "Speeds told wrong by 10 %: more JCT",
            "grounds_conditions",
            ("speeds told wrong",),
            "static-misled",
            needs="data",
        ),
        Row("Reports with 10 % noise: more JCT", "grounds_conditions", ("from noisy",), "static-learnt", needs="data"),
        Row("hadar-60, load .8: fifo; las; hadar; walras", "grounds_hadar", _HADAR, "load-0.8"),
        Row("hadar-60, worst slowdown: hadar; walras", "grounds_hadar", ("hadar: worst", "walras: worst"), "load-0.8"),
        Row(
            "Makespan, Gavel's 100 jobs: alone; pairs",
            "grounds_makespan",
            ("rigid, unpacked", "with pairs"),
            needs="data",
        ),
        Row(
            "Above omniscience, load .5: walras; hadar; fifo",
            "regret",
            (f"walras: {_ABOVE}", f"hadar: {_ABOVE}", f"fifo: {_ABOVE}"),
            "0.5",
        ),
        Row("Load .8: the same", "regret", (f"walras: {_ABOVE}", f"hadar: {_ABOVE}", f"fifo: {_ABOVE}"), "0.8"),
        Row("Load 1: the same", "regret", (f"walras: {_ABOVE}", f"hadar: {_ABOVE}", f"fifo: {_ABOVE}"), "1.0"),
        Row("Gangs over several pools, odd sizes: JCT", "mixed", ("change of JCT: mean",), "runs"),
        Row(
            "Forks, few jobs on many machines: utilisation; time",
            "forks",
            ("5 % for averaging, all mixes: mean", "5 % for averaging, all mixes: total"),
        ),
    ),
    "Elastic jobs": (
        Row(
            "Shockwave's trace: makespan; worst fairness",
            "elastic",
            ("makespan", "worst finish"),
            "shockwave",
            needs="data",
        ),
        Row("Pollux's workloads under our `pollux`: JCT", "elastic", ("average completion",), "pollux", needs="data"),
        Row("The same under `walras`", "elastic", ("average completion",), "walras-on-pollux", needs="data"),
        Row("Sia's philly-1 under our `sia`: JCT", "elastic", ("average completion",), "sia", needs="data"),
        Row("The same under `walras`", "elastic", ("average completion",), "walras-on-sia", needs="data"),
        Row(
            "Arena: finished; JCT of 181",
            "elastic",
            ("finished before round 453", "mean completion time of the first 181"),
            "walras-on-arena",
            needs="data",
        ),
    ),
    "People and money": (
        Row("Few among a flood wait: walras; max-min", "fairness", ("walras: bob waits", "max-min: bob waits")),
        Row("What that fairness costs all", "fairness", ("JCT against no fairness",)),
        Row("A week's use off entitlement: walras", "entitlements", ("the project",), "walras/21"),
        Row("The same: hierarchical", "entitlements", ("the project",), "hierarchical/22"),
        Row("Known values: welfare over fixed priorities", "welfare", ("welfare over",), "values"),
        Row(
            "Gained by tenfold; tenth false value",
            "welfare",
            ("value x 10: gained", "value x 0.1: gained"),
            "false-value",
        ),
        Row(
            "Gained by half; quarter false length",
            "welfare",
            ("length x 0.5: gained", "length x 0.25: gained"),
            "false-length",
        ),
        Row(
            "Payers beside 60 riders, 2 owned machines: JCT",
            "grounds_market",
            ("2 owned machines: payers", "2 owned machines: worst|worst"),
            "riders",
        ),
        Row("Spot gives nothing: a payer's wait; worst", "grounds_market", ("wait and restarts", "worst"), "fallback"),
        Row("Rented machines idle while a job waits", "grounds_market", ("billed by the second",), "idle"),
        Row(
            "Guarantee not kept, part of the time; its price",
            "grounds_market",
            ("has less", "mean completion"),
            "guarantee",
        ),
        Row(
            "Worth of one more accelerator: rank correlation; error",
            "worth",
            ("rank correlation with", "error, median"),
        ),
        Row("Spot, jobs without deadlines: saved", "market", ("with spot: saved",), table="spot beside", needs="data"),
        Row(
            "Spot, jobs with deadlines: saved; late",
            "market",
            ("with spot: saved", "deadlines missed, with spot|late"),
            table="deadline",
            needs="data",
        ),
        Row(
            "Rented by price over the best fixed cluster", "market", ("cheapest of them",), table="fixed", needs="data"
        ),
        Row(
            "Bursts on spot: delay over the cluster alone",
            "bursts",
            ("delay with spot, of that with the cluster",),
            "bursts",
        ),
        Row("Idle accelerators to elastic jobs; others' JCT", "bursts", ("of the idle", "completion time"), "harvest"),
    ),
    "The cloud": (
        Row(
            "Deadline on spot, cost: Uniform Progress; ours; optimum",
            "cloud",
            ("Uniform Progress, cost", "ours, cost", "optimum, cost"),
            table="on spot",
            needs="data",
        ),
        Row("Of the gap closed by ours", "cloud", ("closed by ours",), table="on spot", needs="data"),
        Row(
            "Over two zones, us-west-2: ours; optimum",
            "cloud",
            ("ours over zones, cost", "optimum over zones, exact"),
            table="us-west-2",
            needs="data",
        ),
        Row("Submitted job above `plan spot`'s cost", "deadlines", ("scheduler above",), "no-value", needs="data"),
        Row(
            "Frontier-CS: of the way to the optimum",
            "cant_be_late",
            ("of the way, mean over the variants",),
            needs="data",
        ),
        Row(
            "`plan spot` example: ours; Uniform Progress over optimum",
            "commands",
            ("ours: above", "Uniform Progress: above"),
            "spot",
        ),
        Row("Elastic deadline over on-demand, 12 h", "sets", (_COST, f"{_COST} / late|late"), "loose"),
        Row("The same in 3 h", "sets", (_COST, f"{_COST} / late|late"), "tight"),
        Row(
            "Checkpoint interval over optimum: law stated; learnt",
            "checkpoint_interval",
            ("law stated: over the optimum, mean", "law learnt: over the optimum, mean"),
            "bathtub",
        ),
    ),
    "Speeds": (
        Row(
            "Unseen cells, fused: profet; sia; gavel",
            "performance",
            ("profet, on the type, fused", "sia, on the type, fused", "gavel, on the type, fused"),
            table="unseen cells",
            needs="data",
        ),
        Row(
            "Type never measured: error; inside 80 % intervals",
            "performance",
            ("all four", "all four sources, publications: median error / inside"),
            table="what is known",
            needs="data",
        ),
        Row(
            "Published runs from data sheets: median; worst factor",
            "performance",
            ("factor off, median", "factor off, worst"),
            needs="data",
        ),
        Row("CPU training, 30 % of cells measured: error", "cpu_matrix", ("fused: median error", "baseline|baseline")),
        Row(
            "H200, ResNet-50: measured; predicted",
            "gpu",
            ("resnet50, bf16, batch 256", "resnet50, bf16, batch 256 / told"),
            "speeds",
        ),
        Row("H200 pairs: waiting; computing", "gpu", ("two that wait", "two that keep"), "slices"),
        Row("Unmeasured speeds, gangs: lease rule's JCT", "unknown_speeds", (_RULE,), "gangs-600", needs="data"),
        Row(
            "Slow machines priced, gangs, load .9: JCT",
            "slow_machines",
            (_SLOW, f"{_SLOW} / worst|worst"),
            "gangs-0.9",
            needs="data",
        ),
        Row(
            "Sharing accelerators: JCT",
            "co_location",
            ("fifo: sharing|fifo", "walras: sharing|walras"),
            "simulated",
            needs="data",
        ),
    ),
    "Forecasts and training": (
        Row("80 % intervals held, gavel, fifo", "forecasts", _HELD, "gavel/fifo/unknown"),
        Row("Philly, fifo", "forecasts", _HELD, "philly/fifo/unknown", needs="data"),
        Row("Gavel, walras", "forecasts", _HELD, "gavel/walras/known"),
        Row("Promised ends kept, fifo", "promises", ("kept, of all", "promises taken|of"), "fifo/unknown"),
        Row("Promised ends kept, walras", "promises", ("kept, of all", "promises taken|of"), "walras/unknown"),
        Row(
            "Batch chosen while training: time; 95th percentile",
            "batch_choice",
            ("chosen while it trains: mean", "chosen while it trains: mean / nineteen"),
            table="best batch",
        ),
        Row("Planted stall found: slow loader; slow network", "stalls", ("slow loader", "slow network"), needs="torch"),
        Row("Measuring, of a step of 5.7 ms", "overhead", ("counting and reporting",), needs="torch"),
        Row(
            "Unlike ranks: equal shares; corrected; ideal",
            "shares",
            ("1:4, equal", "1:4, 3", "1:4, ideal"),
            needs="torch",
        ),
    ),
}
