"""Pages of incidents, and one incident with its changes."""

from __future__ import annotations

from collections.abc import Sequence, Set

from moca_client import responses
from moca_client.tables import magnitude
from service.api.gateway.changes import ChangePages
from service.api.gateway.reads import SortedPages, from_store, without
from service.problems import NotFound
from service.schema import rendering
from service.schema.queries import IncidentQuery, IncidentsQuery, kinds_of, seconds_of
from service.store.feed import OF_INCIDENTS, IncidentFeed
from service.wire.incidents import Fleet, FoundIncident, shared

IncidentRank = tuple[float, str]  # value that is sorted by, id
_pages: SortedPages[IncidentRank] = SortedPages(IncidentRank)


class IncidentPages:
    """Answers which streams changed together."""

    def __init__(self, incidents: IncidentFeed, changes: ChangePages) -> None:
        self._incidents = incidents
        self._changes = changes

    async def page(self, query: IncidentsQuery, now_s: float) -> responses.IncidentsPage:
        """Return the page of a query; raises InvalidField for a cursor that is none."""
        found = await from_store(self._incidents.found(kinds_of(query.kind)), bound=False)
        fleet = found.fleet
        fitting = _fitting(found.incidents, query, now_s)
        page, cursor = _pages.page(fitting, query.sort, query.cursor, query.limit)
        return responses.IncidentsPage(
            [_rendered(incident, fleet) for incident in page],
            len(fitting),
            responses.Fleet(fleet.streams, found.false_alarms_per_day, found.per_day),
            cursor,
            without(fleet.unreadable, "incidents"),
        )

    async def one(self, id_: str, query: IncidentQuery) -> responses.IncidentDetail:
        """Return the incident that has a change of this id; raises NotFound."""
        incident = await self.found(id_, kinds_of(query.kind))
        largest_first = sorted(
            incident.changes, key=lambda change: (-magnitude(change.event), change.stream)
        )
        rows, unreadable = await self._changes.described(largest_first, query.around)
        for row in rows:
            row.incident = incident.id
        rendered = _rendered(incident, await from_store(self._incidents.fleet(), bound=False))
        members = {name: getattr(rendered, name) for name in rendered.__struct_fields__}
        return responses.IncidentDetail(
            **members, changes=rows, unreadable=without(unreadable, "incident")
        )

    async def found(self, id_: str, kinds: frozenset[str]) -> FoundIncident:
        """Return the incident that has a change of this id, as it was found; raises NotFound."""
        found = await from_store(self._incidents.found(kinds), bound=False)
        incident = found.of(id_)
        if incident is None:
            of = " and ".join(sorted(kinds & OF_INCIDENTS))
            raise NotFound(
                f"no incident {id_!r} of changes of kind {of} is retained; see GET /v1/incidents"
            )
        return incident

    async def of_changes(self, ids: Set[str], kinds: frozenset[str]) -> list[responses.Incident]:
        """Return the incidents of changes of these kinds that have one of these ids."""
        found = await from_store(self._incidents.found(kinds), bound=False)
        return [
            _rendered(incident, found.fleet)
            for incident in found.incidents
            if ids & incident.change_ids
        ]


def _fitting(
    found: Sequence[FoundIncident], query: IncidentsQuery, now_s: float
) -> list[tuple[IncidentRank, FoundIncident]]:
    """Return the incidents that a query is for, each with its place."""
    filter_ = query.filter(OF_INCIDENTS)
    since = seconds_of(query.since, now_s)
    until = seconds_of(query.until, now_s)
    fitting = []
    for incident in found:
        began = incident.moment.estimate
        if (
            len(incident.changes) >= query.min_streams
            and (since is None or began >= since)
            and (until is None or began < until)
            and any(
                query.contains in change.stream
                and filter_.lets(change.raised)
                and (query.min_size is None or magnitude(change.event) >= query.min_size)
                for change in incident.changes
            )
        ):
            value = began if query.sort == "time" else len(incident.changes)
            fitting.append(((-value, incident.id), incident))
    return fitting


def _rendered(incident: FoundIncident, fleet: Fleet) -> responses.Incident:
    movers = shared(incident.changes, fleet.members, fleet.tagged)
    return rendering.incident(incident, movers, fleet.streams)
