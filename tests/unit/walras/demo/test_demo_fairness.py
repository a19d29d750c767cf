"""Fairness figures of the demo's report."""

import pytest

from walras.demo.run_report import HeldSpan, WantedSpan, entitled_by_user, equal_split_by_user, jain, received_by_user


def test_what_one_user_does_not_want_goes_to_the_others() -> None:
    """Water filling: nobody gets more than wanted, and nothing wanted is left over."""
    assert equal_split_by_user({"ada": 1, "bob": 9, "eve": 9}, 7) == {"ada": 1, "bob": 3, "eve": 3}
    assert equal_split_by_user({"ada": 1, "bob": 1}, 7) == {"ada": 1, "bob": 1}
    assert equal_split_by_user({"ada": 0}, 7) == {"ada": 0}


def test_entitlement_follows_who_is_there() -> None:
    """While a user is alone all of the fleet is theirs (as far as wanted), then it is split."""
    machines = [HeldSpan("", 2, 0, 10)]
    wishes = [WantedSpan("ada", 2, 0, 10), WantedSpan("bob", 2, 5, 10)]
    assert entitled_by_user(wishes, machines) == {"ada": 2 * 5 + 1 * 5, "bob": 1 * 5}


def test_nobody_is_entitled_to_machines_that_are_not_there() -> None:
    """Entitlement counts the capacity of each instant."""
    assert entitled_by_user([WantedSpan("ada", 2, 0, 10)], [HeldSpan("", 1, 4, 6)]) == {"ada": 2}


def test_received_adds_accelerator_seconds() -> None:
    """A gang of two for three seconds is six accelerator-seconds."""
    assert received_by_user([HeldSpan("ada", 2, 0, 3), HeldSpan("ada", 1, 5, 6)]) == {"ada": 7}


def test_jain_is_one_for_equal_and_one_nth_for_all_to_one() -> None:
    """The two ends of Jain's index."""
    assert jain([2, 2, 2]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain([]) == 1
