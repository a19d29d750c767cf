"""Calls one function inside a job: what `walras.submit` sends along, and the job's command.

    python .walras-function/run.py NAME        NAME is for people alone

This text is copied beside the pickled call and imports nothing of Walras. It is the only place where a call is
unpickled. Each rank calls the function, and leaves in `results/RANK.OUTCOME` one line of JSON (`text`: a traceback, or
what went wrong) followed by the pickled value or exception. The job's exit code is 1 unless the function returned.
"""

import json
import os
import pickle
import sys
import traceback
from collections.abc import Mapping
from typing import Any

FOLDER = ".walras-function"
RESULTS = "results"
FUNCTION = "function.pkl"
ABOUT = "about.json"
#: Outcomes: the function returned or raised; or it was not called, or what it returned cannot be sent.
RETURNED, RAISED, REFUSED = "returned", "raised", "refused"
_TEXT_MOST = 65536


def arguments_file(index: int) -> str:
    """Returns the name of the file with the arguments of one call of a map."""
    return f"arguments-{index}.pkl"


def run_call(here: str, environment: Mapping[str, str], pickler: Any) -> int:
    """Call the function in the folder `here` and leave its result there; returns the exit code of the rank.

    `pickler`: cloudpickle. What the function does to end the process (`SystemExit`) goes on to do so.
    """
    outcome, text, content = REFUSED, "", b""
    with open(os.path.join(here, ABOUT), encoding="utf-8") as file:
        about = json.load(file)
    if list(sys.version_info[:2]) != about["python"]:
        own, needed = (".".join(map(str, each)) for each in (sys.version_info[:2], about["python"]))
        text = f"the call was made by Python {needed} and the job runs on Python {own}; "
        text += "submit with job={'python': {'version': '" + needed + "', 'packages': [...]}}"
    else:
        outcome, text, content = _called(here, environment, pickler)
        most = about["result_bytes"]
        if len(content) > most and outcome == RETURNED:
            outcome, text = REFUSED, f"the result has {len(content):,} bytes and at most {most:,} are kept; "
            text += "write it to a file that job={'outputs': [...]} names"
        content = content if len(content) <= most else b""
    results = os.path.join(here, RESULTS)
    os.makedirs(results, exist_ok=True)
    place = os.path.join(results, f"{environment.get('RANK', '0')}.{outcome}")
    with open(f"{place}.part", "wb") as file:
        file.write(json.dumps({"text": text[-_TEXT_MOST:]}).encode() + b"\n" + content)
    os.replace(f"{place}.part", place)
    if outcome == RETURNED:
        return 0
    sys.stderr.write(text + "\n")
    return 1


def _called(here: str, environment: Mapping[str, str], pickler: Any) -> tuple[str, str, bytes]:
    """Returns the outcome with its text and what is pickled."""
    try:
        function = _read(os.path.join(here, FUNCTION))
        args, kwargs = _read(os.path.join(here, arguments_file(int(environment.get("WALRAS_ARRAY_INDEX", "0")))))
    except Exception as error:
        return REFUSED, f"the call cannot be unpickled in the job: {type(error).__name__}: {error}", b""
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        # The traceback leaves out the frame of this function.
        inner = None if error.__traceback__ is None else error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, inner))
        try:
            return RAISED, text, pickler.dumps(error)
        except Exception:
            return RAISED, text, b""
    try:
        return RETURNED, "", pickler.dumps(value)
    except Exception as error:
        return REFUSED, f"the result, a {type(value).__name__}, cannot be pickled: {error}", b""


def _read(path: str) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def _main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    # cloudpickle lies beside this file: the release that pickled the call, whatever the machine has.
    import cloudpickle

    # Then the job's own modules come first, as in any script of the working folder.
    sys.path[:] = [os.getcwd(), *(path for path in sys.path if path != here), here]
    return run_call(here, dict(os.environ), cloudpickle)


if __name__ == "__main__":
    sys.exit(_main())
