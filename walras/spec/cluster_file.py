"""The cluster file (pools of machines, providers' settings, rehearsed market steps), and the hosts file.

The same cluster file drives the live server, the demo and the simulator. A pool names its provider (`provider: aws`),
and the provider's settings stand in the section of that name (`aws: {…}`). A new provider adds its settings here, as
one more class and one more field of `ProviderSections` (docs/how-to/add-a-provider.md).

The hosts file lists machines of one's own on which agents are started over SSH:

    server: https://walras.example:8443
    hosts:
      - {host: gpu1.lab, zone: lab}
      - {host: me@gpu2.lab, port: 2222, shape: tower, walras: /opt/walras/bin/walras}

What OpenSSH knows of a host (user, port, key, jump host) is read from its own configuration.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from walras.cluster import Market, Pool, PoolId, Shape, checked_lifetime
from walras.errors import ConfigError
from walras.machines.topology import Topology, slurm_switches
from walras.spec.catalog import catalog_memory_bytes
from walras.spec.field_types import (
    AcceleratorName,
    Length,
    Memory,
    Number,
    PoolWord,
    ShownName,
    WholeNumber,
)
from walras.spec.file_model import FieldMistake, FileModel, nearest_or_all
from walras.storage.checkpoint_store import check_store, is_handed_out

#: Parts of the names that EC2 gives (`ami-…`, `subnet-…`), and names of profiles.
_AwsWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+=,.@_-]{0,127}$")]
_PipRequirement = Annotated[str, Field(pattern=r"^[A-Za-z0-9./:][^\s'\"`$\\;|&<>]{0,399}$")]


class ProviderSettings(FileModel):
    """The settings of one provider."""

    #: The least that a person has to write, as an error message shows it.
    example: ClassVar[str]


class AwsRegion(FileModel):
    """What a further region of EC2 has of its own."""

    image: _AwsWord
    security_groups: Annotated[tuple[_AwsWord, ...], Field(max_length=16)] = ()


def region_of(zone: str, regions: Iterable[str]) -> str | None:
    """Returns the region, of those given, in which an availability zone of EC2 lies; None: in none of them."""
    within = [region for region in regions if zone.startswith(region) and not zone[len(region) :][:1].isdigit()]
    return max(within, key=len, default=None)


class AwsSettings(ProviderSettings):
    """Where and how machines of `provider: aws` are launched. Credentials are found by boto3, never written here."""

    example: ClassVar[str] = "{region: …, image: …, server_url: https://…}"

    region: PoolWord
    #: Further regions, by name. All other settings hold in every region.
    regions: Annotated[dict[PoolWord, AwsRegion], Field(max_length=64)] = Field(default_factory=dict)
    #: The machine image: Linux with systemd, Python 3.11, curl and the accelerators' drivers.
    image: _AwsWord
    #: Where machines reach the server: TLS, because tokens travel there.
    server_url: Annotated[str, Field(pattern=r"^https://[A-Za-z0-9.\[\]:_/-]{1,400}$")]
    #: By availability zone; a zone that is not named has the account's default subnet.
    subnets: dict[PoolWord, _AwsWord] = Field(default_factory=dict)
    security_groups: Annotated[tuple[_AwsWord, ...], Field(max_length=16)] = ()
    #: The instance profile of the machines, for what jobs may do at AWS; None: nothing.
    instance_profile: _AwsWord | None = None
    #: Installed with pip at the first boot: `walras` from the server itself, all else from the machine's index. Empty:
    #: the image has `/opt/walras/bin/walras` already.
    install: Annotated[tuple[_PipRequirement, ...], Field(max_length=16)] = ("walras[torch]",)

    @model_validator(mode="after")
    def _each_region_once(self) -> "AwsSettings":
        if self.region in self.regions:
            raise FieldMistake("regions", f"{self.region} is the `region` above; name only further ones here")
        return self

    def in_each_region(self) -> dict[str, "AwsSettings"]:
        """Returns the settings of each region, `region` first."""
        further = {
            name: self.model_copy(update={"region": name, "image": own.image, "security_groups": own.security_groups})
            for name, own in self.regions.items()
        }
        return {self.region: self, **further}


_SlurmWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}$")]
_Path = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./%@+=:-]{1,400}$")]


class SlurmSettings(ProviderSettings):
    """How allocations of `provider: slurm` are submitted, and what their nodes have. The server submits as its user."""

    example: ClassVar[str] = "{server_url: http://…}"

    #: Where compute nodes reach the server; empty: at its own address.
    server_url: Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9.\[\]:_/-]{1,400})?$")] = ""
    #: Python on the nodes with Walras installed; empty: the server's own path, for a file system that all share.
    python: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_./+-]{1,400})?$")] = ""
    #: Folder of `sbatch`, `squeue` and `scancel`; empty: they are on the path.
    commands: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_./+-]{1,400})?$")] = ""
    #: Where agents keep their state while an allocation lasts, on a disk of the node.
    state: _Path = "/tmp/walras-agents"
    #: The log file of agents; Slurm puts the job's number in the place of `%j`.
    output: _Path = "/dev/null"
    #: Slurm's partition of a pool's zone; a zone that is not named has the default partition.
    partitions: dict[PoolWord, _SlurmWord] = Field(default_factory=dict)
    #: Slurm's names of accelerators where they differ from ours.
    gres: dict[AcceleratorName, _SlurmWord] = Field(default_factory=dict)
    #: Time limit of an allocation, in whole minutes; None: the partition's.
    time: Annotated[Length, Field(ge=60, le=365 * 86_400)] | None = None
    #: Further options of sbatch, such as `--account=lab`.
    options: Annotated[
        tuple[Annotated[str, Field(pattern=r"^--?[A-Za-z0-9][A-Za-z0-9_.,:=@/+-]{0,400}$")], ...], Field(max_length=32)
    ] = ()
    #: Seconds between two polls of Slurm's lists.
    poll: Annotated[Length, Field(ge=1, le=600)] = 15.0
    #: Emulation only: a file with the speeds of emulated accelerators, on the nodes.
    speeds: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_./+-]{1,400})?$")] = ""


class ProviderSections(FileModel):
    """One optional section for each provider that has settings, under the provider's name."""

    aws: AwsSettings | None = None
    slurm: SlurmSettings | None = None

    def provider_settings(self, provider: str) -> ProviderSettings | None:
        """Returns the provider's section; None if the file has none, or if the provider takes no settings."""
        return getattr(self, provider) if self.settings_type(provider) is not None else None

    @classmethod
    def settings_type(cls, provider: str) -> type[ProviderSettings] | None:
        """Returns the class of the provider's settings; None if the provider takes none (`local`)."""
        field = cls.model_fields.get(provider)
        types = () if field is None else get_args(field.annotation)
        return next((each for each in types if isinstance(each, type) and issubclass(each, ProviderSettings)), None)


LARGEST_POOL = 100_000
_ROLE = r"^(|arn:[a-z-]{3,20}:iam:[A-Za-z0-9-]{0,30}:[A-Za-z0-9]{0,30}:role/[A-Za-z0-9_+=,.@/-]{1,600})$"


# --------------------------------------------------------------------------------------------------- the cluster


def _checked_network(written: str) -> str:
    try:
        return str(ip_network(written))
    except ValueError:
        raise ValueError(f"{written[:60]!r} is no network; write 10.1.0.0/16, or one address") from None


def _market_word(value: object) -> object:
    return value.strip().lower().replace("-", "_") if isinstance(value, str) else value


class PoolEntry(FileModel):
    """Machines of one shape, market and zone: owned machines, or machines that a provider rents out."""

    shape: PoolWord
    accelerator: AcceleratorName
    #: Accelerators on one machine.
    accelerators: WholeNumber = Field(ge=1, le=1024)
    cpus: Annotated[Number, Field(gt=0, le=4096)]
    memory: Annotated[Memory, Field(gt=0)]
    nominal_speed: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    emulated: bool = False
    #: Memory of one accelerator, for jobs that share one. 0: as the type's name or the catalog states.
    accelerator_memory: Memory = 0
    #: Owned machines: nodes of a simulation, agents that a demo starts.
    machines: WholeNumber = Field(default=0, ge=0, le=LARGEST_POOL)
    market: Annotated[Market, BeforeValidator(_market_word)] = Market.OWNED
    zone: PoolWord = "default"
    #: Name of the provider that rents the machines out; empty for owned machines.
    provider: Annotated[str, Field(max_length=100)] = ""
    #: Market price of one machine.
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)] = 0.0
    #: Largest number of machines that may be rented.
    quota: WholeNumber = Field(default=0, ge=0, le=LARGEST_POOL)
    #: Number of machines that are held rented whether or not they are worth their price.
    least: WholeNumber = Field(default=0, ge=0, le=LARGEST_POOL)
    #: Warning before a revocation.
    notice: Length = 0.0
    #: The law of its machines' lifetimes, such as `uniform 24h`; empty: learnt from the machines' own lives.
    lifetime: Annotated[str, AfterValidator(checked_lifetime)] = ""
    #: Time from the request for a machine until it takes jobs.
    boot: Length = 0.0
    #: Minimum time that a rented machine is billed for.
    minimum_billing: Length = 0.0
    #: Billed in whole steps of this length (`1h`); 0: by the second.
    billing_step: Length = 0.0

    _topology: Topology | None = PrivateAttr(default=None)

    other_words: ClassVar[dict[str, str]] = {
        "type": "accelerator", "gpu": "accelerator", "gpus": "accelerators", "count": "machines", "nodes": "machines",
        "mem": "memory", "price": "usd_per_h", "region": "zone", "notice_s": "notice", "boot_s": "boot",
        "min": "least", "max": "quota",
    }  # fmt: skip

    @model_validator(mode="after")
    def _owned_or_rented(self) -> "PoolEntry":
        if self.market is Market.OWNED and (self.quota or self.provider):
            field = "quota" if self.quota else "provider"
            raise FieldMistake(field, "an owned pool is not rented; set market: spot or on_demand, or remove this")
        if self.least > self.quota:
            raise FieldMistake("least", f"at least {self.least} machines, and at most {self.quota} (quota)")
        if self.market is not Market.OWNED and not self.provider:
            raise FieldMistake("provider", "a rented pool needs a provider; write `provider: local` or `simulated`")
        if self.market is not Market.OWNED and self.machines:
            raise FieldMistake("machines", "machines are owned ones, and this pool is rented; set `quota` instead")
        return self

    @property
    def pool_id(self) -> PoolId:
        return PoolId(f"{self.shape}/{self.market}/{self.zone}")

    def pool(self) -> Pool:
        """Returns the pool as every layer sees it."""
        shape = Shape(
            name=self.shape,
            accelerator=self.accelerator,
            accelerators=self.accelerators,
            cpus=self.cpus,
            memory_bytes=self.memory,
            nominal_speed=self.nominal_speed,
            emulated=self.emulated,
            accelerator_memory_bytes=self.accelerator_memory or catalog_memory_bytes(self.accelerator),
        )
        return Pool(
            pool_id=self.pool_id,
            shape=shape,
            market=self.market,
            zone=self.zone,
            usd_per_h=self.usd_per_h,
            quota=self.quota,
            least=self.least,
            notice_s=self.notice,
            lifetime=self.lifetime,
            boot_s=self.boot,
            minimum_billing_s=self.minimum_billing,
            billing_step_s=self.billing_step,
            topology=self._topology,
        )


#: Largest topology.conf that is read, bytes.
_TOPOLOGY_MAX = 16 * 2**20


def _link_speed(value: object) -> float:
    """Returns the bytes per second of `100Gbit` (also `100 Gbit/s`, `12.5GB/s`)."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([kMGT]?)(bit|B)(?:/s)?", str(value)[:40], re.ASCII)
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"{str(value)[:40]!r} is no speed of a link; write such as `100Gbit`")
    return float(found[1]) * 1000.0 ** " kMGT".index(found[2] or " ") / (8.0 if found[3] == "bit" else 1.0)


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


_LinkSpeed = Annotated[float, BeforeValidator(_link_speed)]
_HostList = Annotated[str, BeforeValidator(_joined), Field(max_length=1_000_000)]


class TopologyEntry(FileModel):
    """The switches above owned machines, and the speeds of their links."""

    #: Speed of one uplink of each level, from the machines up: `{machine: 100Gbit, rack: 10Gbit}`.
    uplinks: Annotated[dict[PoolWord, _LinkSpeed], Field(min_length=1, max_length=16)]
    #: The machines or switches below each switch, as Slurm lists them: `{r1: "gpu[01-08]"}`.
    switches: Annotated[dict[ShownName, _HostList], Field(max_length=100_000)] = Field(default_factory=dict)
    #: Path of a `topology.conf` of Slurm that names them instead; empty: none.
    slurm: Annotated[str, Field(max_length=4096)] = ""

    @model_validator(mode="after")
    def _is_a_tree(self) -> "TopologyEntry":
        field = "slurm" if self.slurm else "switches"
        try:
            if self.slurm and self.switches:
                raise ValueError("switches are named there and in the file of Slurm; write one of them")
            self.topology.links  # noqa: B018  it checks what it reads
        except (OSError, ValueError) as error:
            raise FieldMistake(field, str(error)) from None
        return self

    @cached_property
    def topology(self) -> Topology:
        """Returns it as every layer sees it. Raises OSError, or ValueError that names the mistake."""
        switches = self.switches
        if self.slurm:
            path = Path(self.slurm)
            if not path.is_file() or path.stat().st_size > _TOPOLOGY_MAX:
                raise ValueError(f"{self.slurm} is no file, or too large; give the path of topology.conf")
            switches = slurm_switches(path.read_bytes().decode(errors="replace"))
        return Topology(tuple(self.uplinks.items()), tuple(switches.items()))


class MarketStep(FileModel):
    """One step of a market that follows a script, on a live server (rehearsals; simulations have incidents)."""

    #: Time after the server is ready.
    at: Length
    #: Pool id, such as `v100x1/spot/default`.
    pool: ShownName
    #: New price of its machines; None: unchanged.
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    #: The notice with which the provider revokes all its rented machines; None: it revokes none.
    revoke: Length | None = None


class NotifyEntry(FileModel):
    """What a live server tells its users of, and where it may send that."""

    #: Networks that are not public but may be notified, such as `10.1.0.0/16`.
    private_networks: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_network)], ...], Field(max_length=100)
    ] = ()
    #: A job that waits longer than this counts as stuck: its owner is told.
    stuck_after: Annotated[Length, Field(ge=60)] = 86_400.0


class CheckpointAccess(FileModel):
    """The server hands machines credentials for the place of one job in the store, which end by themselves."""

    #: The role that the server assumes for them, as an ARN; empty: it asks for a federation token, which users of IAM
    #: get, and roles do not.
    role: Annotated[str, Field(pattern=_ROLE)] = ""
    #: How long each lasts. STS knows 15 minutes to 12 hours, and at most 1 hour where one role assumes another.
    lasts: Annotated[Length, Field(ge=900, le=43_200)] = 3600.0

    @property
    def partition(self) -> str:
        """The second word of the store's ARNs."""
        return self.role.split(":")[1] if self.role else "aws"


def _percent(value: object) -> object:
    """Returns the number of `5%`; a bare number could be a part as well as a percentage."""
    text = value if isinstance(value, str) else ""
    found = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*", text, re.ASCII)
    if found is None:
        raise ValueError("is no percentage; write such as `5%`")
    return float(found[1])


class IdleJobEntry(FileModel):
    """Which jobs do nothing with what they hold, and what becomes of them."""

    #: Percent of use below which every accelerator of an idle job stays, `5%`.
    below: Annotated[float, BeforeValidator(_percent), Field(gt=0, le=100)]
    #: Seconds for which it must stay so.
    lasting: Annotated[Length, Field(alias="for", ge=60, le=30 * 86_400)]
    #: The action: the owner is told; or the job is held as well, after its checkpoint.
    act: Literal["notify", "requeue-held"] = "notify"


class KeepEntry(FileModel):
    """How long a live server keeps what it has of jobs that ended; older ones are deleted once a day."""

    #: For how long their records are kept.
    jobs: Annotated[Length, Field(ge=3600)] = 400 * 86_400.0
    #: For how long their logs are kept.
    logs: Annotated[Length, Field(ge=3600)] = 90 * 86_400.0
    #: For how long checkpoints in folders of their own are kept (those that projects keep by name stay); None: for
    #: ever.
    checkpoints: Annotated[Length, Field(ge=3600)] | None = None
    #: Events and commands, up to the start of a server that is older; None: for ever.
    journal: Annotated[Length, Field(ge=3600)] | None = None


class SignInEntry(FileModel):
    """An OpenID Connect provider at which users sign in."""

    #: Its address as its documents state it; TLS, or loopback.
    issuer: Annotated[
        str, Field(pattern=r"^(https://|http://(localhost|127\.0\.0\.1|\[::1\])(:|/|$))[!-~]*$", max_length=1024)
    ]
    client_id: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[!-~]+$")]
    #: File of the client's secret, one line; None: a public client.
    client_secret_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    #: The claim that names the user here: an address has to be verified by the provider.
    user_claim: Annotated[str, Field(pattern=r"^[A-Za-z0-9_:/.-]{1,200}$")] = "email"
    scope: Annotated[str, Field(pattern=r"^openid( [!-~]+)*$", max_length=1024)] = "openid email profile"

    def client_secret(self) -> str:
        """Returns the secret; empty for a public client. Raises ConfigError."""
        from walras.server_access import read_token

        return "" if self.client_secret_file is None else read_token(Path(self.client_secret_file))


def _checked_store(setting: str) -> str:
    try:
        return check_store(setting)
    except ConfigError as error:
        raise ValueError(f"{error}; {error.fix}") from None


class ClusterConfig(ProviderSections):
    """A cluster file."""

    pools: Annotated[tuple[PoolEntry, ...], Field(min_length=1, max_length=10_000)]
    #: How long an attempt runs on after the last contact between its machine and the server; None: 10 minutes on
    #: owned and on-demand machines, 2 minutes on spot machines.
    lease: Annotated[Length, Field(ge=5, le=86_400)] | None = None
    #: What happens to attempts that run on when the server's database was restored from a backup: `go_on`, or `stop`
    #: (their jobs are held).
    after_restore: Literal["go_on", "stop"] = "go_on"
    #: Where checkpoints are kept (`walras.storage.checkpoint_store`); None: `server`, or in a cluster that had jobs
    #: before there were stores what machines share below the server's own folder.
    checkpoints: Annotated[str, AfterValidator(_checked_store)] | None = None
    #: How machines get into an `s3://` store; None: by credentials of their own.
    checkpoint_access: CheckpointAccess | None = None
    #: None: ended jobs and their logs are kept until `walras admin prune` deletes them.
    keep: KeepEntry | None = None
    #: What to do about jobs that do nothing with their accelerators; None: nothing.
    idle_job: IdleJobEntry | None = None
    #: What users are told of outside of Walras (`walras notify`).
    notify: NotifyEntry = NotifyEntry()
    #: Where users sign in to the page and by `walras whoami --login`; None: with tokens alone.
    sign_in: SignInEntry | None = None
    #: How far machines of owned pools are apart; None: all are equally near.
    topology: TopologyEntry | None = None
    #: Emulation only: steps per second of a gang, by kind of job and accelerator type.
    speeds: dict[ShownName, dict[AcceleratorName, Annotated[Number, Field(gt=0, le=1e9)]]] = Field(default_factory=dict)
    #: Price changes and revocations that a live server simulates, for rehearsals.
    market: Annotated[tuple[MarketStep, ...], Field(max_length=10_000)] = ()

    @model_validator(mode="after")
    def _one_meaning_per_name(self) -> "ClusterConfig":
        pools: set[PoolId] = set()
        shapes: dict[str, Shape] = {}
        for position, entry in enumerate(self.pools):
            shape = entry.pool().shape
            if entry.pool_id in pools:
                raise FieldMistake(
                    f"pools[{position}]", f"a second pool {entry.pool_id}; change its shape, market or zone"
                )
            if shapes.setdefault(entry.shape, shape) != shape:
                raise FieldMistake(
                    f"pools[{position}].shape", f"{entry.shape!r} is another machine above; give it a name of its own"
                )
            pools.add(entry.pool_id)
        for position, step in enumerate(self.market):
            if step.pool not in pools:
                raise FieldMistake(f"market[{position}].pool", f"there is no pool {step.pool}")
        return self

    @model_validator(mode="after")
    def _machines_have_places(self) -> "ClusterConfig":
        found = None if self.topology is None else self.topology.topology
        for entry in self.pools:
            entry._topology = found if entry.market is Market.OWNED else None
        return self

    @model_validator(mode="after")
    def _providers_are_described(self) -> "ClusterConfig":
        for name in dict.fromkeys(entry.provider for entry in self.pools):
            settings = self.settings_type(name)
            if settings is not None and self.provider_settings(name) is None:
                raise FieldMistake(name, f"pools of provider {name} need `{name}: {settings.example}`")
        regions = () if self.aws is None else tuple(self.aws.in_each_region())
        for position, entry in enumerate(self.pools):
            if entry.provider == "aws" and region_of(entry.zone, regions) is None:
                field, known = f"pools[{position}].zone", ", ".join(regions)
                raise FieldMistake(field, f"{entry.zone} lies in no region of `aws`; known: {known}")
        return self

    @model_validator(mode="after")
    def _access_is_to_a_store(self) -> "ClusterConfig":
        if self.checkpoint_access is not None and not is_handed_out(self.checkpoints or ""):
            raise FieldMistake("checkpoint_access", "there are such credentials for `checkpoints: s3://…` alone")
        return self

    def pool_list(self) -> list[Pool]:
        """Returns the pools in the order of the file."""
        return [entry.pool() for entry in self.pools]

    def entry(self, pool_id: str) -> PoolEntry:
        """Returns the entry of a pool. Raises ConfigError naming the nearest one that exists."""
        by_id = {str(entry.pool_id): entry for entry in self.pools}
        if pool_id not in by_id:
            raise ConfigError(f"no pool {pool_id!r}", fix=nearest_or_all(pool_id, by_id))
        return by_id[pool_id]


#: A pattern of words that a shell and OpenSSH's option parser take for plain words.
_RemotePath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_/~][A-Za-z0-9_./+-]{0,400}$")]
_Url = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.\[\]:_/-]{1,400}$")]


class HostEntry(FileModel):
    """One machine."""

    #: The host, as one would write it after `ssh`.
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@:%+-]{0,254}$")]
    #: The port; None: as OpenSSH's configuration states.
    port: Annotated[WholeNumber, Field(ge=1, le=65_535)] | None = None
    #: The machine's name in the cluster; empty: that of the host, without a user.
    node: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")] = ""
    #: The path of the `walras` command on the host.
    walras: _RemotePath = "walras"
    #: Folder of the agent's state on the host, below the home folder unless it begins with a slash.
    state: _RemotePath = ".walras-agent"
    shape: PoolWord = "default"
    zone: PoolWord = "default"
    #: The accelerators; None: those that the agent finds.
    accelerator: AcceleratorName | None = None
    accelerators: Annotated[WholeNumber, Field(ge=1, le=1024)] | None = None
    emulated: bool = False

    @property
    def node_id(self) -> str:
        return self.node or self.host.rpartition("@")[2].replace(":", "-").replace("%", "-")


class HostsFile(FileModel):
    """A hosts file."""

    #: Where the machines reach the server; further ones are tried in turn.
    server: _Url | tuple[_Url, ...]
    hosts: Annotated[tuple[HostEntry, ...], Field(min_length=1, max_length=10_000)]

    @property
    def servers(self) -> tuple[str, ...]:
        return (self.server,) if isinstance(self.server, str) else self.server

    @model_validator(mode="after")
    def _one_agent_per_name(self) -> "HostsFile":
        seen: set[str] = set()
        for position, entry in enumerate(self.hosts):
            if entry.node_id in seen:
                raise FieldMistake(f"hosts[{position}].node", f"a second machine {entry.node_id}; give it a name")
            seen.add(entry.node_id)
        return self
