"""Least squares where every group has parameters of its own and all groups share some: the normal matrix is an arrow.

Each observation reaches a few parameters of its group and a few shared ones. Own parameters are eliminated group by
group, so that time grows with the number of groups and not with its cube.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n observations: the group, and slopes by (n, few) own and (n, few) shared parameters, at these positions."""

    groups: Places
    own_at: Places
    own: Array
    shared_at: Places
    shared: Array

    def over(self, noise: Array) -> "Rows":
        """In standard deviations of the noise."""
        own, shared = self.own / noise[:, None], self.shared / noise[:, None]
        return Rows(self.groups, self.own_at, own, self.shared_at, shared)

    def times(self, weights: Array, groups: int, own: int, shared: int) -> tuple[Array, Array]:
        """Weighted sums of slopes: (groups, own) and (shared,)."""
        by_own, by_shared = np.zeros((groups, own)), np.zeros(shared)
        np.add.at(by_own, (self.groups[:, None], self.own_at), self.own * weights[:, None])
        np.add.at(by_shared, self.shared_at, self.shared * weights[:, None])
        return by_own, by_shared


@dataclass(frozen=True, slots=True, eq=False)
class Arrow:
    """Inverse of the normal matrix, in parts: of groups alone, what groups share, and of what is shared."""

    alone: Array
    across: Array
    shared: Array

    def solve(self, own: Array, shared: Array) -> tuple[Array, Array]:
        """The normal matrix's inverse times (groups, own) and (shared,)."""
        by_group = np.einsum("kij,kj->ki", self.alone, own)
        middle = self.shared @ (shared - np.einsum("kig,ki->g", self.across, by_group))
        return by_group - np.einsum("kij,kj->ki", self.alone, self.across @ middle), middle

    def variances(self, rows: Rows) -> Array:
        """Of what each row adds up."""
        group = rows.groups[:, None, None]
        alone = self.alone[group, rows.own_at[:, :, None], rows.own_at[:, None, :]]
        own = np.einsum("ni,nij,nj->n", rows.own, alone, rows.own)
        pulled = np.einsum("nik,ni->nk", self.alone[rows.groups[:, None], rows.own_at], rows.own)
        left = -np.einsum("nk,nkg->ng", pulled, self.across[rows.groups])
        np.add.at(left, (np.arange(len(left))[:, None], rows.shared_at), rows.shared)
        return np.asarray(own + np.einsum("ng,gh,nh->n", left, self.shared, left))


def arrow(rows: Rows, own_precision: Array, shared_precision: Array) -> Arrow:
    """Of these rows (in standard deviations of their noise) and priors: (groups, own) and (shared,)."""
    groups, own = own_precision.shape
    shared = len(shared_precision)
    corner = np.zeros((groups, own, own))
    corner[:, np.arange(own), np.arange(own)] = own_precision
    across, common = np.zeros((groups, own, shared)), np.diag(shared_precision)
    group, left, right = rows.groups[:, None, None], rows.own_at[:, :, None], rows.own_at[:, None, :]
    np.add.at(corner, (group, left, right), rows.own[:, :, None] * rows.own[:, None, :])
    to = rows.shared_at[:, None, :]
    np.add.at(across, (group, left, to), rows.own[:, :, None] * rows.shared[:, None, :])
    np.add.at(common, (rows.shared_at[:, :, None], to), rows.shared[:, :, None] * rows.shared[:, None, :])
    alone = np.asarray(np.linalg.inv(corner), dtype=np.float64)
    flat = across.reshape(-1, shared)
    middle = np.linalg.inv(common - flat.T @ (alone @ across).reshape(-1, shared))
    return Arrow(alone, across, np.asarray(middle, dtype=np.float64))
