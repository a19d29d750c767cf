"""Where TorchX looks for schedulers since it deprecates entry points; TorchX imports this file, and nobody else does.

Both folders are namespaces that other packages share: neither has an `__init__.py`.
"""

from torchx.plugins import register
from torchx.schedulers.api import Scheduler

from walras.torchx_scheduler import create_scheduler


@register.scheduler(name="walras")
def walras(session_name: str, **options: object) -> Scheduler:
    """Returns the queue of the server that the command line uses, as a scheduler of TorchX."""
    return create_scheduler(session_name, **options)
