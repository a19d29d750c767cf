"""Budgets as people read them, and credits as they are added: `walras money --budgets`, `walras admin credit`."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from walras.spec.field_types import ShownName
from walras.transport import ApiCall, Transport

_PATH = "/api/v1/budgets"
_Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class NewCredit(BaseModel):
    """`POST /budgets/credits`: an amount for a budget that the policy in force has."""

    model_config = ConfigDict(extra="forbid")

    #: The budget's owner, as the policy's rules name it; all fields empty: the cluster's budget.
    project: ShownName | None = None
    user: ShownName | None = None
    group: ShownName | None = None
    #: Exactly one of these is set.
    usd: _Amount | None = None
    accelerator_h: _Amount | None = None
    fair_share_h: _Amount | None = None
    reason: Annotated[str, Field(max_length=200)] = ""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.group and self.user:
            raise ValueError("give either a user or a group")
        if sum(amount is not None for amount in (self.usd, self.accelerator_h, self.fair_share_h)) != 1:
            raise ValueError("give one of usd, accelerator_h and fair_share_h")
        return self


class BudgetView(BaseModel):
    """One limit: how much of it is used and left, and when it is renewed."""

    #: The owner in words; empty: the cluster.
    whose: str
    project: str = ""
    user: str = ""
    group: str = ""
    #: One of usd, accelerator_h, fair_share_h.
    unit: str
    #: One of day, week, month, quarter, or a length such as 14d; empty: one amount without periods.
    every: str = ""
    used: float
    #: The amount, credits included.
    limit: float
    credited: float = 0.0
    #: What is used per hour now, and what stopping all of its jobs would still use.
    per_h: float = 0.0
    committed: float = 0.0
    #: Whether no job of it may start.
    closed: bool = False
    #: When the period ends; None where it has no end.
    refills: str | None = None


class CreditView(BaseModel):
    """A credit that was added to a budget."""

    id: int
    at: str
    whose: str
    unit: str
    amount: float
    created_by: str
    reason: str = ""


_BUDGETS: TypeAdapter[list[BudgetView]] = TypeAdapter(list[BudgetView])
_CREDITS: TypeAdapter[list[CreditView]] = TypeAdapter(list[CreditView])


class BudgetCalls:
    """The client's calls about budgets."""

    _transport: Transport

    async def budgets(self) -> list[BudgetView]:
        """Returns the budgets that the caller may see, as they stand."""
        return _BUDGETS.validate_python(await self._transport.json(ApiCall("GET", _PATH)))

    async def credits(self) -> list[CreditView]:
        """Returns what was added to budgets, newest first."""
        return _CREDITS.validate_python(await self._transport.json(ApiCall("GET", f"{_PATH}/credits")))

    async def add_credit(self, body: Mapping[str, Any]) -> CreditView:
        """Add to a budget (`walras.budgets.NewCredit`; administrators)."""
        call = ApiCall("POST", f"{_PATH}/credits", body=dict(body), repeatable=False)
        return CreditView.model_validate(await self._transport.json(call))
