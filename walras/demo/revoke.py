"""The cloud takes a rented machine back. With the `local` provider the demo is that cloud."""

from walras.api import NodeView
from walras.demo.stage import Stage
from walras.errors import ClusterError


def revoke_machine(stage: Stage, node: NodeView) -> None:
    """Give notice the way a cloud's metadata service does: a file in the folder of the machine's agent.

    The notice is the pool's own; when it is over the provider takes the machine away.
    """
    notice_s = stage.cluster.entry(node.pool).notice
    folders = [path for path in stage.server.rglob(node.node_id) if path.is_dir()]
    if len(folders) != 1:
        raise ClusterError(f"the folder of machine {node.node_id} is not to be found below {stage.server}")
    unfinished = folders[0] / "notice.new"
    unfinished.write_text(f"{notice_s:g}\n")
    unfinished.rename(folders[0] / "notice")
