"""PyTorch without its compiler, for jobs that use none: to be imported before torch.

The first optimizer of a process loads the compiler, which takes as long as all the rest of PyTorch.
"""

import sys
from unittest.mock import MagicMock

#: What asks the compiler to leave a function alone gets the function.
sys.modules["torch._dynamo"] = MagicMock(disable=lambda function, *_, **__: function)
