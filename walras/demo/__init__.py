"""`walras demo`: a whole cluster on one machine, real PyTorch jobs, a report and a list of promises."""
