"""The sections of a cluster file that describe providers: what each needs to know to rent out machines.

A pool names its provider (`provider: aws`), and the provider's settings stand in the section of that name (`aws: {…}`).
A new provider adds its settings here, as one more class and one more field of `ProviderSections`
(docs/how-to/add-a-provider.md).
"""

from typing import Annotated, ClassVar, get_args

from pydantic import Field

from walras.spec.field_types import AcceleratorName, Length, PoolWord
from walras.spec.file_model import FileModel

#: Parts of the names that EC2 gives (`ami-…`, `subnet-…`), and names of profiles.
_AwsWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+=,.@_-]{0,127}$")]
_PipRequirement = Annotated[str, Field(pattern=r"^[A-Za-z0-9./:][^\s'\"`$\\;|&<>]{0,399}$")]


class ProviderSettings(FileModel):
    """The settings of one provider."""

    #: The least that a person has to write, as an error message shows it.
    example: ClassVar[str]


class AwsSettings(ProviderSettings):
    """Where and how machines of `provider: aws` are launched. Credentials are found by boto3, never written here."""

    example: ClassVar[str] = "{region: …, image: …, server_url: https://…}"

    region: PoolWord
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
