"""Deletes content: once a day what no job needs, and every few minutes superseded checkpoints.

A checkpoint that newer ones supersede is deleted soon, or a job that saves often would fill the disk. An upload under
way may rely on chunks that are there: its question about them resets their age, so they stay. Content of object stores
is deleted by the same rules (`walras.storage.object_store`), as far as they answer.
"""

import asyncio
import logging
import sqlite3

from scheduler.live.server import Server
from scheduler.live.store.content_store import SweptContent
from walras.errors import ClusterError, UserError
from walras.storage.checkpoint_store import is_object_store
from walras.storage.object_store import ObjectFolder, sweep_objects

log = logging.getLogger(__name__)

#: Content is kept for this time, seconds, after it was last sent or named by a new job, so that reruns send nothing.
CONTENT_KEPT_S = 30 * 86_400.0
#: Chunks of a superseded checkpoint that were not used for this time, seconds, are deleted.
SUPERSEDED_KEPT_S = 1800.0
_SWEEP_EVERY_S, _DROP_EVERY_S = 86_400.0, 600.0
#: Expired content in object stores that did not answer is looked for again within this time, seconds.
_EXPIRED_WITHIN_S = 7 * 86_400.0
#: Jobs that saved within this time before the newest checkpoint are looked at for superseded ones, seconds.
_TAKEN_UP_S = 86_400.0


async def content_in_use(server: Server, keep_checkpoints_s: float | None) -> list[str]:
    """Returns the trees that jobs need, checkpoints of ended jobs for `keep_checkpoints_s` (None:
    for ever).
    """
    since_at = 0.0 if keep_checkpoints_s is None else server.loop.clock.now() - keep_checkpoints_s
    codes = [job.launch.code for job in server.state.jobs.values() if job.launch.code]
    # The tables may be a moment older than the live state.
    newest = [each for job in server.state.jobs.values() for each in (job.checkpoint, job.earlier_checkpoint)]
    kept = await server.read(server.store.checkpoint_content, since_at)
    results = await server.read(server.store.output_trees)
    return codes + results + kept + [each.content for each in newest if each is not None and each.content]


async def sweep_content(
    server: Server, keep_checkpoints_s: float | None = None, min_age_s: float = CONTENT_KEPT_S, *, is_dry: bool = False
) -> SweptContent:
    """Delete content that no job needs and that was not used for `min_age_s`; with `is_dry`, only name it."""
    in_use = await content_in_use(server, keep_checkpoints_s)
    return await server.read(server.content.sweep, in_use, min_age_s, is_dry=is_dry)


async def drop_superseded(server: Server, keep_checkpoints_s: float | None = None) -> None:
    """Delete superseded checkpoints, except chunks that were used recently or that other trees need."""
    names, server.state.superseded = server.state.superseded, set()
    if names:
        # Asked after the names were taken: checkpoints that are superseded from now on are for the next time.
        kept = names
        try:
            in_use = await content_in_use(server, keep_checkpoints_s)
            kept = await server.read(server.content.drop, names, in_use, SUPERSEDED_KEPT_S)
        finally:
            server.state.superseded |= kept


async def drop_superseded_objects(server: Server, keep_checkpoints_s: float | None = None) -> None:
    """As `drop_superseded`, in the object stores where newer checkpoints have been recorded."""
    left, server.state.superseded_places = server.state.superseded_places, set()
    try:
        in_use = set(await content_in_use(server, keep_checkpoints_s)) if left else set()
        for place in sorted(left):
            if await _swept(server, place, in_use) is not None:
                left.remove(place)
    finally:
        server.state.superseded_places |= left


async def drop_expired_objects(
    server: Server, keep_checkpoints_s: float, within_s: float = _EXPIRED_WITHIN_S, *, is_dry: bool = False
) -> tuple[int, list[str]]:
    """Delete from object stores what is left of jobs that ended longer than `keep_checkpoints_s` ago.

    Places that the tables name are looked at if their jobs expired in the last `within_s`; those in the present store
    whatever their age. Returns how many objects went, or with `is_dry` would, and the places that did not answer.
    """
    before_at, root = server.loop.clock.now() - keep_checkpoints_s, server.admission.checkpoints.store
    deleted, unanswered = 0, list[str]()
    places = set(await server.read(server.store.expired_checkpoint_places, before_at - within_s, before_at))
    if is_object_store(root):  # of jobs of any age, of which the tables may know nothing any more
        try:
            names = await asyncio.to_thread(lambda: ObjectFolder(f"{root}/jobs").folders())
        except (ClusterError, UserError) as error:
            log.warning("what no job needs at %s was not deleted: %s", root, error)
            names, unanswered = [], [root]
        numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 16]
        places |= {f"{root}/jobs/{job_id}" for job_id in await server.read(server.store.jobs_over, numbers, before_at)}
    in_use = set(await content_in_use(server, keep_checkpoints_s)) if places else set()
    for place in sorted(places):
        count = await _swept(server, place, in_use, over_s=keep_checkpoints_s, is_dry=is_dry)
        deleted += count or 0
        unanswered += [place] if count is None else []
    return deleted, unanswered


async def take_up_superseded(server: Server) -> None:
    """Take up what newer checkpoints superseded shortly before an earlier server ended."""
    for content, store in await server.read(server.store.superseded_checkpoints, _TAKEN_UP_S):
        if store:
            server.state.superseded_places.add(store)
        else:
            server.state.superseded.add(content)


async def _swept(
    server: Server, place: str, in_use: set[str], *, over_s: float | None = None, is_dry: bool = False
) -> int | None:
    """Returns how many objects went; None where the store does not answer. Runs in a thread of its own, since it may
    take minutes.

    `over_s`: how long nobody has written there any more; what is younger stays. None: a job may.
    """

    def sweep() -> int:
        old_at, is_over = server.clocks.wall() - (over_s or 0.0), over_s is not None
        return sweep_objects(ObjectFolder(place), in_use, old_at, is_over=is_over, is_dry=is_dry)

    try:
        count = await asyncio.to_thread(sweep)
        log.info("%s %d objects at %s that no job needs", "found" if is_dry else "deleted", count, place)
    except (ClusterError, UserError) as error:
        log.warning("what no job needs at %s was not deleted: %s", place, error)
        return None
    return count


async def sweep_for_ever(server: Server, keep_checkpoints_s: float | None) -> None:
    """Do all of this for ever. What the disk or the database refuses is tried again the next time."""
    waited_s = _SWEEP_EVERY_S
    while True:
        try:
            if waited_s >= _SWEEP_EVERY_S or server.logs.is_cutting:
                await asyncio.to_thread(server.logs.recount, await server.read(server.store.users_of_jobs))
            if waited_s >= _SWEEP_EVERY_S:
                waited_s = 0.0
                await take_up_superseded(server)
                if keep_checkpoints_s is not None:
                    await drop_expired_objects(server, keep_checkpoints_s)
                swept = await sweep_content(server, keep_checkpoints_s)
                log.info("deleted %d bytes of content that no job needs", swept.size_bytes)
            await drop_superseded(server, keep_checkpoints_s)
            await drop_superseded_objects(server, keep_checkpoints_s)
        except (OSError, sqlite3.OperationalError, ClusterError) as error:
            log.warning("content that no job needs was not all deleted: %s", error)
        await asyncio.sleep(_DROP_EVERY_S)
        waited_s += _DROP_EVERY_S
