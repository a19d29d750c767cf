"""What online admission reaches against the offline optimum, and how wide its proofs are.

    python -m benchmarks admission

Random instances, 20 a row and 4 where gangs fill a pool. Every schedule is listed, mixed gangs included; the optimum
is HiGHS's bound on it. docs/hadar.md tells what the figures mean and holds the table.
"""

from dataclasses import dataclass

from benchmarks.admissions import Size, instance_of
from benchmarks.tables import Measured
from optimizer.assignment.online_admission import AdmissionProof, PriceSaturation, admit_online, offline_optimum

_INSTANCES = 20
#: Part of them where gangs fill a pool: their integer programs take a minute each.
_OF_HARD = 0.2
#: Of the optimum: gangs of four make integer programs whose last percent takes minutes.
_GAP = 0.02
ROWS = (
    (Size(6, 4, 8, 1), PriceSaturation.FULL),
    (Size(6, 4, 10, 2), PriceSaturation.FULL),
    (Size(6, 4, 10, 2), PriceSaturation.PROVABLE),
    (Size(5, 8, 16, 2), PriceSaturation.PROVABLE),
    (Size(5, 16, 40, 1), PriceSaturation.PROVABLE),
    (Size(5, 4, 12, 4), PriceSaturation.FULL),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One instance: its proof, and the bound proved on the offline optimum."""

    proof: AdmissionProof
    optimum: float

    @property
    def behind(self) -> float:
        """Optimum over value."""
        return self.optimum / self.proof.value

    @property
    def growth(self) -> float:
        """What one unit of value added to the dual."""
        return (self.proof.final_dual - self.proof.initial_dual) / self.proof.value


def outcome(size: Size, saturation: PriceSaturation, seed: int) -> Outcome:
    """Admit online and solve offline."""
    instance = instance_of(size, seed)
    return Outcome(admit_online(instance, saturation).proof, offline_optimum(instance, _GAP).bound)


def measure(scale: float) -> list[Measured]:
    """A table for every row."""
    many, few = max(1, round(_INSTANCES * scale)), max(1, round(_INSTANCES * _OF_HARD * scale))
    return [_row(size, saturation, many if size.gang < size.capacity else few) for size, saturation in ROWS]


def _row(size: Size, saturation: PriceSaturation, instances: int) -> Measured:
    outcomes = [outcome(size, saturation, seed) for seed in range(instances)]
    proofs = [entry.proof for entry in outcomes]
    part = 100.0 / instances
    kept = sum(entry.growth <= entry.proof.alpha_of_dust for entry in outcomes)
    measured = Measured(
        f"online admission, {size.rounds} rounds, 2 x {size.capacity} accelerators",
        f"{size.jobs} jobs, gangs up to {size.gang}, curve {saturation.value}, {instances} instances",
    )
    measured.add("optimum over value, mean", sum(entry.behind for entry in outcomes) / instances, "x")
    measured.add("optimum over value, worst", max(entry.behind for entry in outcomes), "x")
    measured.add("growth of the dual per unit of value, largest", max(entry.growth for entry in outcomes), "x")
    measured.add("ln(U/L), mean", sum(proof.alpha_of_dust for proof in proofs) / instances, "x")
    measured.add("alpha(delta), mean", sum(proof.alpha for proof in proofs) / instances, "x")
    measured.add("growth within ln(U/L)", kept * part, "%")
    within = sum(entry.growth <= entry.proof.alpha for entry in outcomes)
    measured.add("growth within alpha(delta)", within * part, "%", at_least=100.0)
    measured.add("dual infeasible", sum(not proof.dual_feasible for proof in proofs) * part, "%")
    measured.add("bound by weak duality over value, mean", sum(p.bound / p.value for p in proofs) / instances, "x")
    return measured
