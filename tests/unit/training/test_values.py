"""The named numbers of a script."""

import pytest

from walras.training.measurements import ReportedValues


def test_a_loss_that_is_no_number_is_left_out_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In the job's own log; once it is a number again it is shown again."""
    values = ReportedValues()
    values.take({"loss": 2.0, "accuracy": 0.5})
    values.take({"loss": float("nan")})
    assert values.message_fields() == {"values": {"accuracy": 0.5}, "first_values": {"loss": 2.0, "accuracy": 0.5}}
    values.message_fields()
    assert capsys.readouterr().err.count("walras: loss is nan: it is not shown") == 1
    values.take({"loss": 1.0})
    assert values.message_fields()["values"] == {"loss": 1.0, "accuracy": 0.5}
