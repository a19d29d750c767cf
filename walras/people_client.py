"""The calls of `walras.client.Client` about people: users, projects, roles, tokens."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from walras.notifications import ChannelCreated, ChannelView
from walras.people import ProjectView, RoleView, ShareView, TokenCreated, TokenList, TokenView, UserView
from walras.reservations import ReservationView
from walras.transport import ApiCall, Transport

_API = "/api/v1"
_users: TypeAdapter[list[UserView]] = TypeAdapter(list[UserView])
_projects: TypeAdapter[list[ProjectView]] = TypeAdapter(list[ProjectView])
_shares: TypeAdapter[list[ShareView]] = TypeAdapter(list[ShareView])
_reservations: TypeAdapter[list[ReservationView]] = TypeAdapter(list[ReservationView])
_channels: TypeAdapter[list[ChannelView]] = TypeAdapter(list[ChannelView])
_roles: TypeAdapter[list[RoleView]] = TypeAdapter(list[RoleView])


class PeopleCalls:
    """The client's calls about people. Changes are merge patches: null removes a setting."""

    _transport: Transport

    async def users(self) -> list[UserView]:
        """Returns the users of the caller's projects."""
        return _users.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/users")))

    async def add_user(self, name: str, settings: Mapping[str, Any]) -> UserView:
        """Add a user. Raises Conflict for one who is there already."""
        return UserView.model_validate(await self._add("users", name, settings))

    async def change_user(self, name: str, changes: Mapping[str, Any]) -> UserView:
        """Give a user another role or other projects."""
        return UserView.model_validate(await self._change("users", name, changes))

    async def remove_user(self, name: str) -> UserView:
        """Remove a user: their tokens open nothing any more."""
        return UserView.model_validate(await self._remove("users", name))

    async def projects(self) -> list[ProjectView]:
        """Returns the projects that the caller has, with their settings."""
        return _projects.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/projects")))

    async def add_project(self, name: str, settings: Mapping[str, Any]) -> ProjectView:
        """Add a project. Raises Conflict for one that is there already."""
        return ProjectView.model_validate(await self._add("projects", name, settings))

    async def change_project(self, name: str, changes: Mapping[str, Any]) -> ProjectView:
        """Change caps, defaults or shares of a project."""
        return ProjectView.model_validate(await self._change("projects", name, changes))

    async def remove_project(self, name: str) -> ProjectView:
        """Forget a project's settings. Raises Conflict while somebody uses it."""
        return ProjectView.model_validate(await self._remove("projects", name))

    async def roles(self) -> list[RoleView]:
        """Returns the roles with their caps, the least first."""
        return _roles.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/roles")))

    async def change_role(self, name: str, changes: Mapping[str, Any]) -> RoleView:
        """Change the caps of a role."""
        return RoleView.model_validate(await self._change("roles", name, changes))

    async def create_token(
        self, user: str, role: str, projects: Sequence[str], *, expires_in_s: float | None = None
    ) -> TokenCreated:
        """Make a token. Only this answer holds the secret, so the call is not repeated after a lost answer."""
        body = {"user": user, "role": role, "projects": list(projects), "expires_in_s": expires_in_s}
        call = ApiCall("POST", f"{_API}/tokens", body=body, repeatable=False)
        return TokenCreated.model_validate(await self._transport.json(call))

    async def tokens(self) -> list[TokenView]:
        """Returns the tokens that the caller could have made, and its own, without their secrets."""
        return TokenList.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/tokens"))).items

    async def revoke_token(self, prefix: str) -> TokenView:
        """Make a token open nothing any more; `prefix`: its first characters, as `tokens` has them."""
        path = f"{_API}/tokens/{quote(prefix, safe='')}"
        return TokenView.model_validate(await self._transport.json(ApiCall("DELETE", path)))

    async def share(self, project: str = "") -> list[ShareView]:
        """Returns where the caller's projects and their users stand; of one project, or all."""
        query = {"project": project} if project else {}
        return _shares.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/share", query=query)))

    async def reserve(self, asked: Mapping[str, Any]) -> ReservationView:
        """Reserve machines, with the fields of `walras.reservations.NewReservation`.

        Raises Conflict where that cannot be honoured as things stand, with the numbers.
        """
        call = ApiCall("POST", f"{_API}/reservations", body=dict(asked), repeatable=False)
        return ReservationView.model_validate(await self._transport.json(call))

    async def reservations(self, *, everything: bool = False) -> list[ReservationView]:
        """Returns the reservations that have not ended; `everything`: the newest of the others too."""
        query = {"all": "1"} if everything else {}
        call = ApiCall("GET", f"{_API}/reservations", query=query)
        return _reservations.validate_python(await self._transport.json(call))

    async def cancel_reservation(self, reservation_id: int) -> ReservationView:
        """Give the machines of a reservation back to everybody."""
        call = ApiCall("DELETE", f"{_API}/reservations/{reservation_id:d}")
        return ReservationView.model_validate(await self._transport.json(call))

    async def channels(self) -> list[ChannelView]:
        """Returns where the caller is told of events."""
        return _channels.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/notify")))

    async def add_channel(self, url: str, kinds: Sequence[str]) -> ChannelCreated:
        """Adds an address that is told of these kinds of events; only this answer shows the key of its signatures."""
        call = ApiCall("POST", f"{_API}/notify", body={"url": url, "kinds": list(kinds)}, repeatable=False)
        return ChannelCreated.model_validate(await self._transport.json(call))

    async def remove_channel(self, channel_id: int) -> ChannelView:
        """Removes an address, which is told of nothing any more."""
        return ChannelView.model_validate(
            await self._transport.json(ApiCall("DELETE", f"{_API}/notify/{channel_id:d}"))
        )

    async def test_channel(self, channel_id: int) -> ChannelView:
        """Sends a test to an address and waits for the outcome: `problem` says what went wrong."""
        call = ApiCall("POST", f"{_API}/notify/{channel_id:d}/test", repeatable=False)
        return ChannelView.model_validate(await self._transport.json(call))

    async def _add(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any:
        body = {"name": name, "settings": dict(settings)}
        return await self._transport.json(ApiCall("POST", f"{_API}/{kind}", body=body, repeatable=False))

    async def _change(self, kind: str, name: str, changes: Mapping[str, Any]) -> Any:
        path = f"{_API}/{kind}/{quote(name, safe='')}"
        return await self._transport.json(ApiCall("PATCH", path, body=dict(changes)))

    async def _remove(self, kind: str, name: str) -> Any:
        return await self._transport.json(ApiCall("DELETE", f"{_API}/{kind}/{quote(name, safe='')}"))
