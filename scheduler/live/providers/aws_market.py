"""`walras offers --market`: what the spot pools of a cluster file have cost, as EC2 tells it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scheduler.live.access.enrolment_tokens import EnrolmentTokens
from scheduler.live.providers.aws_calls import Ec2Calls, make_client
from scheduler.live.providers.aws_provider import AwsProvider, PricePoint
from walras.config import ClusterConfig, load_yaml
from walras.errors import ConfigError


def recorded_prices(cluster: Path, since_s: float) -> list[PricePoint]:
    """Prices in force so long ago and every change after it, oldest first. Raises ConfigError, ProviderProblem."""
    known = load_yaml(cluster, ClusterConfig)
    settings = known.aws
    if settings is None:
        raise ConfigError(f"{cluster}: no pool is rented from aws", field="--cluster", fix="see docs/cloud.md")
    pools = [entry.pool() for entry in known.pools if entry.provider == "aws"]
    # Asking for prices launches nothing: neither the cluster's name nor its secret is needed.
    calls = Ec2Calls(lambda: make_client(settings.region))
    provider = AwsProvider("", settings, pools, EnrolmentTokens(b""), calls)
    try:
        return asyncio.run(provider.price_history(datetime.now(UTC) - timedelta(seconds=since_s)))
    finally:
        provider.close()
