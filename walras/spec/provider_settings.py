"""The sections of a cluster file that describe providers: what each needs to know to rent out machines.

A pool names its provider (`provider: aws`), and the provider's settings stand in the section of that name (`aws: {…}`).
A new provider adds its settings here, as one more class and one more field of `ProviderSections`
(docs/how-to/add-a-provider.md).
"""

from typing import Annotated, ClassVar, get_args

from pydantic import Field

from walras.spec.field_types import PoolWord
from walras.spec.file_model import FileModel

#: Parts of the names that EC2 gives (`ami-…`, `subnet-…`), and names of profiles.
_AwsWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+=,.@_-]{0,127}$")]
_PipRequirement = Annotated[str, Field(pattern=r"^[A-Za-z0-9./:][^\s'\"`$\\;|&<>]{0,399}$")]


class ProviderSettings(FileModel):
    """The settings of one provider."""

    #: What a person has to write at least, as an error message shows it.
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
    #: What jobs on the machines may do at AWS; None: nothing.
    instance_profile: _AwsWord | None = None
    #: Installed with pip at the first boot: `walras` from the server itself, all else from the machine's index. Empty:
    #: the image has `/opt/walras/bin/walras` already.
    install: Annotated[tuple[_PipRequirement, ...], Field(max_length=16)] = ("walras[torch,nvidia]",)


class ProviderSections(FileModel):
    """One optional section for each provider that has settings, under the provider's name."""

    aws: AwsSettings | None = None

    def provider_settings(self, provider: str) -> ProviderSettings | None:
        """Returns the provider's section; None if the file has none, or if the provider takes no settings."""
        return getattr(self, provider) if self.settings_type(provider) is not None else None

    @classmethod
    def settings_type(cls, provider: str) -> type[ProviderSettings] | None:
        """Returns the class of the provider's settings; None if the provider takes none (`local`)."""
        field = cls.model_fields.get(provider)
        types = () if field is None else get_args(field.annotation)
        return next((each for each in types if isinstance(each, type) and issubclass(each, ProviderSettings)), None)
