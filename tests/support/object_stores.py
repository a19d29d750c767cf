"""A stand-in of S3 on loopback with one bucket, in the environment of this process and of what it starts."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.provider_kit import stand_in_of_aws


@pytest.fixture(name="bucket")
def bucket_of_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its files through s3fs, without a cache; skips without s3fs and moto (WALRAS_REQUIRE=s3: fails)."""
    if "s3" in os.environ.get("WALRAS_REQUIRE", "").split(","):
        import s3fs
    else:
        pytest.importorskip("moto.server", reason="moto is not installed (the extra dev)")
        s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (the extra stores)")
    with stand_in_of_aws() as url:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key-of-the-agent",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-agent",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        files = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
        files.mkdir("bucket")
        yield files
