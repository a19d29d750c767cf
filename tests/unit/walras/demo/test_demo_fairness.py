"""Fairness figures of the demo's report."""

from walras.demo.main import AcceleratorSpan, entitled_by_user, equal_split_by_user, received_by_user


def test_what_one_user_does_not_want_goes_to_the_others() -> None:
    """Water filling: nobody gets more than wanted, and nothing wanted is left over."""
    assert equal_split_by_user({"ada": 1, "bob": 9, "eve": 9}, 7) == {"ada": 1, "bob": 3, "eve": 3}
    assert equal_split_by_user({"ada": 1, "bob": 1}, 7) == {"ada": 1, "bob": 1}
    assert equal_split_by_user({"ada": 0}, 7) == {"ada": 0}


def test_entitlement_follows_who_is_there() -> None:
    """While a user is alone all of the fleet is theirs (as far as wanted), then it is split."""
    machines = [AcceleratorSpan("", 2, 0, 10)]
    wishes = [AcceleratorSpan("ada", 2, 0, 10), AcceleratorSpan("bob", 2, 5, 10)]
    assert entitled_by_user(wishes, machines) == {"ada": 2 * 5 + 1 * 5, "bob": 1 * 5}


def test_nobody_is_entitled_to_machines_that_are_not_there() -> None:
    """Entitlement counts the capacity of each instant."""
    assert entitled_by_user([AcceleratorSpan("ada", 2, 0, 10)], [AcceleratorSpan("", 1, 4, 6)]) == {"ada": 2}


def test_received_adds_accelerator_seconds() -> None:
    """A gang of two for three seconds is six accelerator-seconds."""
    assert received_by_user([AcceleratorSpan("ada", 2, 0, 3), AcceleratorSpan("ada", 1, 5, 6)]) == {"ada": 7}
