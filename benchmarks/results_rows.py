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
_SLOW = "slow machines have prices, against: no machine is ever called slow"
_RULE = "as shipped, against: all work repays a lease"
_COST = "planned: cost of on demand alone, mean"
_AT_BEST = "against the best in one pool"
_MIXED = (f"{_AT_BEST}: mean", f"{_AT_BEST}: worst seed|worst")
_RACKS = ("JCT against not knowing the racks: mean", "JCT against not knowing the racks: worst seed|worst")
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
            "Leader killed 30 times: jobs lost; next leads, median",
            "standby",
            ("acknowledged", "another leads and answers, median"),
            "kills",
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
        Row(
            "1,000 working machines, 10,000 active jobs: starts; heartbeat p99",
            "working",
            ("starts", "heartbeat with reports"),
        ),
        Row("The same: memory growth; longest piece in the loop", "working", ("its growth", "longest piece")),
        Row("Jobs of `true`: fifo; default; HyperQueue", "short_jobs", ("fifo", "default policy", "HyperQueue")),
        Row("SchedulerCore.handle, 10,000 active jobs", "core", ("mean",)),
        Row(
            "Web page, 10,000 jobs: first view; drawn",
            "web",
            ("first view: files, compressed / with", "first view: files, compressed / drawn"),
            needs="Chromium",
        ),
        Row("Checkpoint of 1 GiB: up; down", "checkpoints", ("up", "down"), needs="torch"),
    ),
    "Decisions": (
        Row(
            "Max-min, 10,000 jobs in 300 kinds x 20 columns: median",
            "policies",
            ("problem to decision, median",),
            table="daily",
        ),
        Row("Max-min, 10,000 different jobs x 8 pools", "policies", ("max_min_fairness",), table="own speeds"),
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
    ),
    "The simulator": (
        Row("1,000,000 jobs, 10,000 accelerators, fifo", "simulator", ("1,000,000 jobs",)),
        Row("Philly, 82,247 jobs, fifo", "simulator", ("the run",), table="strict", needs="data"),
        Row("Philly on three types, max-min", "simulator", ("the run",), table="aware max-min re-solved", needs="data"),
        Row(
            "Gavel's rounds, times faster than recorded", "simulator", ("faster than",), table="mechanism", needs="data"
        ),
    ),
    "`walras` on others' grounds": (
        Row("Gavel static, at events", "grounds_traces", _EVENTS, "static-events", needs="data"),
        Row("multi_small, gangs, at events", "grounds_traces", _EVENTS, "gangs-events", needs="data"),
        Row(
            "Gavel multi_small by `walras simulate compare`: JCT; worst slowdown",
            "commands",
            ("mean completion", "worst slowdown"),
            "gangs",
            needs="data",
        ),
        Row("Gavel static, Gavel's rounds", "grounds_traces", _ROUNDS, "static-rounds", needs="data"),
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
    ),
    "Gangs over several pools, against the best policy that keeps them in one": (
        Row("Pools of 6, gangs of 4, 5: JCT", "mixed", _MIXED, "fragments", "an hour"),
        Row("Gangs of 2, 3: the same", "mixed", _MIXED, "whole", "an hour"),
        Row("Pools of 20, gangs to 8: the same", "mixed", _MIXED, "hadar-60", "an hour"),
    ),
    "Racks, against not knowing them": (Row("Four racks, 10 : 1: JCT", "topology", _RACKS, "racks", "load 0.8"),),
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
        Row("Spot gives nothing: a payer's wait; worst", "grounds_market", ("wait and restarts", "worst"), "fallback"),
        Row("Rented machines idle while a job waits", "grounds_market", ("billed by the second",), "idle"),
        Row(
            "Guarantee not kept, part of the time; its price",
            "grounds_market",
            ("has less", "mean completion"),
            "guarantee",
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
    ),
    "Speeds": (
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
    ),
    "Forecasts and training": (
        Row(
            "Look at 1,000 waiting jobs, default",
            "forecasts",
            ("`walras`, 1000 jobs, a look", "`walras`, 1000 jobs, told of|told of"),
            "look",
        ),
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
