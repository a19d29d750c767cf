"""Walras: schedule PyTorch jobs on unlike accelerators, by prices.

This is the one package users touch: the job spec, the client, the command line, and `walras.training`,
which runs inside training processes. Importing it costs nothing: the standard library only.
"""

import pkgutil

# An agent puts a small copy of this package (walras + walras.training) on a job's PYTHONPATH. Where the job's own
# environment has Walras installed too, its other modules must stay reachable behind that copy.
__path__ = pkgutil.extend_path(__path__, __name__)

__version__ = "0.1.0"
