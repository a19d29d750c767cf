"""`walras note`: notes on a job, written, listed and removed; `walras show` shows them too."""

from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import JobArgument, OutputOption
from walras.cli.job_choice import local_time
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import OutputFormat, safe_text, show_json, show_line
from walras.errors import NotFound, UserError

if TYPE_CHECKING:
    from walras.client import Client
    from walras.job_notes import NoteView


def job_note_command(
    job: JobArgument,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT...", help="The note; without one, the notes are listed.")
    ] = None,
    remove: Annotated[
        int | None, typer.Option("--remove", metavar="ID", min=1, help="Remove the note of this number.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write a note on a job, also one that has ended, for all who see the job; or list its notes."""
    job_id, written = job_id_of(job), " ".join(text or []).strip()
    if remove is not None and written:
        raise UserError("a note is written or removed, not both", field="--remove", fix="run the command twice")
    notes = with_client(lambda client: _done(client, job_id, written, remove))
    if output is OutputFormat.JSON:
        show_json([note.model_dump(mode="json") for note in notes])
    elif remove is not None:
        show_line(f"note {remove} on job {job_id} is removed")
    elif written:
        show_line(f"note {notes[0].id} on job {job_id}")
    else:
        for line in note_lines(notes) or [f"no notes on job {job_id}"]:
            show_line(line)


async def _done(client: "Client", job_id: int, written: str, remove: int | None) -> "list[NoteView]":
    """Returns the note that was written or removed, or all."""
    if remove is not None:
        return [await client.remove_note(job_id, remove)]
    return [await client.add_note(job_id, written)] if written else await client.notes(job_id)


async def notes_of(client: "Client", job_id: int) -> "list[NoteView]":
    """Returns the notes on a job that is there; none from a server of a release before notes."""
    try:
        return await client.notes(job_id)
    except NotFound:
        return []


def note_lines(notes: "list[NoteView]") -> list[str]:
    """Returns each note as a line of number, writer and time, and its text below, safe for a terminal."""
    lines = []
    for note in notes:
        lines.append(f"note {note.id}, {safe_text(note.user)}, {local_time(note.at)}")
        lines += [f"  {line}" for line in safe_text(note.text, lines=True).splitlines()]
    return lines
