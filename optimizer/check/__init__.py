"""An independent opinion on an answer: recomputes everything from the problem and shares no code with solvers."""
