"""Notes on jobs: what people write down about a job, for themselves and for others who see it.

Everybody who sees a job reads its notes. Its owner, operators of its project and administrators write and remove them,
also once the job has ended. They are deleted with the job.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from walras.api import Body
from walras.transport import ApiCall, Transport

_API = "/api/v1"
#: The longest note, in characters.
LONGEST_NOTE = 2000
#: The most notes on one job.
MOST_NOTES = 100


class NewNote(BaseModel):
    """Asks to add a note to a job (`POST /jobs/{id}/notes`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(max_length=LONGEST_NOTE)


class NoteView(Body):
    """A note on a job. The text is as somebody wrote it: treat it as a stranger's."""

    id: int
    job_id: int
    #: Who wrote it, and when.
    user: str
    at: str
    text: str


_notes: TypeAdapter[list[NoteView]] = TypeAdapter(list[NoteView])


class NoteCalls:
    """The client's calls about notes on jobs."""

    _transport: Transport

    async def notes(self, job_id: int) -> list[NoteView]:
        """Returns the notes on a job, oldest first."""
        return _notes.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/jobs/{job_id:d}/notes")))

    async def add_note(self, job_id: int, text: str) -> NoteView:
        """Add a note to a job, ended or not. Raises Forbidden for somebody else's job, Conflict where it has many."""
        call = ApiCall("POST", f"{_API}/jobs/{job_id:d}/notes", body={"text": text}, repeatable=False)
        return NoteView.model_validate(await self._transport.json(call))

    async def remove_note(self, job_id: int, note_id: int) -> NoteView:
        """Remove a note from a job, and return it once more."""
        call = ApiCall("DELETE", f"{_API}/jobs/{job_id:d}/notes/{note_id:d}", repeatable=False)
        return NoteView.model_validate(await self._transport.json(call))
