"""What the placement worker remembers of each tenancy between transactions (design decisions 5 and 6).

The tenancy's row is locked first; its version says whether anything that placement judges by has
changed since. Then only the machines that changed are read again. After a transaction that did not
commit, what is remembered of its tenancies is thrown away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from corral.domain.access import EVERY_POOL
from corral.domain.asks import Ahead, PlacementAsk, Plan
from corral.domain.fleet import Fleet
from corral.domain.gpu_hours import Excess, Ledger
from corral.domain.placement import try_place
from corral.domain.quotas import NO_LIMIT, Before, Over, Quota, Standing, amounts, explain, known
from corral.domain.resources import Ask, Resources
from corral.domain.workloads import must_end_by, sure_end
from corral.store import access, fleet, restored, workloads
from corral.store import quotas as quota_rows
from corral.store.transaction import Row, Scope, Tx
from corral.usecases.quotas import Counted

MOST_REMEMBERED = 256
"""Tenancies; the least used one is forgotten and read again when it is needed."""


@dataclass(frozen=True)
class Grant:
    """What a workspace may use of the cluster. `pools` None: every machine of the organisation there."""

    pools: frozenset[str] | None
    quota: Quota


LASTS = timedelta(seconds=1)
"""How long what the time decides of the queue stays as it was judged: whether windows and GPU-hours hold it back."""
NO_ACCESS = "the workspace has no access to the cluster any more"
RESTORED = "a back-up was restored: it may run on a machine that has not said since what it runs"


@dataclass
class Beginning:
    """What a process cannot know when it begins: a back-up may have been put back without a word.

    So what `waited` then is held while a machine that counts as Up has not said since what it runs.
    """

    waited: Collection[str] = frozenset()
    """Workloads."""
    has_said: Callable[[str], bool] = lambda _: True
    _known: set[tuple[str, str]] = field(default_factory=set)

    def holds(self, tx: Tx, tenancy: Tenancy) -> Mapping[str, str]:
        """Return what of a tenancy's queue is held, and why."""
        where = (tenancy.cluster_id, tenancy.scope.org)
        held = [one.id for one in tenancy.queue if one.id in self.waited] if where not in self._known else []
        if not held:
            return {}
        for id, name in restored.counted_up(tx, tenancy.scope, tenancy.cluster_id):
            if not self.has_said(id):
                return dict.fromkeys(
                    held,
                    f"the control plane was started: it may run on '{name}', which has not said since what it runs",
                )
        self._known.add(where)
        return {}


@dataclass
class Waiting:
    """One workload that waits for capacity."""

    id: str
    workspace_id: str
    name: str
    want: PlacementAsk
    """Its selectors; the pools granted, and what depends on when it is tried, are set then."""
    time_limit_s: int | None
    reason: str
    _asked: PlacementAsk | None = field(default=None, compare=False)

    def asking(self, pools: frozenset[str] | None, now: datetime) -> PlacementAsk:
        """Return what it asks for when it is tried."""
        if self._asked is None or self._asked.now != now or self._asked.pools != pools:
            end = sure_end(must_end_by(now, self.time_limit_s))
            self._asked = replace(self.want, pools=pools, now=now, sure_end=end)
        return self._asked


@dataclass
class Tenancy:
    """One organisation's part of one cluster, as of `version`."""

    cluster_id: str
    scope: Scope
    beginning: Beginning = field(default_factory=Beginning)
    version: int = -1
    fleet: Fleet = field(default_factory=Fleet)
    counted: Counted = field(default_factory=Counted)
    grants: dict[str, Grant | None] = field(default_factory=dict)
    queue: list[Waiting] = field(default_factory=list)
    """First come first."""
    last_queue_no: int = 0
    _line: Remembered = field(default_factory=lambda: Remembered())
    _doubtful: Mapping[str, str] | None = None
    """As of one transaction."""

    def begin(self) -> None:
        """Another transaction looks at it."""
        self._doubtful = None
        self._line.looked_at = False

    def grant(self, tx: Tx, workspace_id: str) -> Grant | None:
        """Return what the workspace may use here (None: nothing)."""
        if workspace_id not in self.grants:
            quota = quota_rows.of_workspace(tx, self.scope, workspace_id).get(self.cluster_id)
            pools = access.pools(tx, self.scope, workspace_id).get(self.cluster_id, ())
            every = EVERY_POOL in pools
            self.grants[workspace_id] = None if quota is None else Grant(None if every else frozenset(pools), quota)
        return self.grants[workspace_id]

    def waiting_of(self, workspace_id: str) -> list[Waiting]:
        """Return the workspace's own waiting workloads."""
        return [one for one in self.queue if one.workspace_id == workspace_id]

    def standing(self, tx: Tx, workspace_id: str, before: Before | None = None) -> Standing | None:
        """Return how the workspace stands with its quota, after those that wait `before`; None: it has no limit.

        None for `before`: after all of the workspace that wait.
        """
        grant = self.grant(tx, workspace_id)
        if grant is None or grant.quota == NO_LIMIT:
            return None
        if before is None:
            before = self._judged_line(tx).before.get(workspace_id) or Before(tx.now)
        timed = grant.quota.gpu_hours_month is not None
        hours = self.counted.hours(tx, self.scope, self.cluster_id, workspace_id) if timed else Ledger(tx.now)
        return Standing(grant.quota, self.counted.of(workspace_id), before, hours)

    def after(self, before: Before, grant: Grant, want: PlacementAsk) -> None:
        """Count one more that waits before others of its workspace."""
        before.add(grant.quota, want, self.least(grant, want))

    def least(self, grant: Grant, want: PlacementAsk) -> Resources:
        """Return what an ask takes at least where its fair share is the smallest, if the quota limits shares."""
        return self.fleet.least(want) if want.ask.shared and grant.quota.limits_shares else Resources()

    def judged(self, tx: Tx, want: PlacementAsk, before: Before | None = None) -> tuple[PlacementAsk, Over | None]:
        """Return the ask for what its workspace's quota leaves, and by what it exceeds the quota wherever it went."""
        grant, standing = self.grant(tx, want.workspace), self.standing(tx, want.workspace, before)
        if grant is None or standing is None:
            return want, None
        over = standing.over(known(want, self.least(grant, want))) or standing.over_hours(want)
        return standing.within(want), over

    def kept_out(self, tx: Tx, want: PlacementAsk, ahead: Ahead) -> Over | None:
        """Return by what an ask exceeds the quota on the machine that it would get were there none."""
        plan = try_place(self.fleet, want, ahead)
        standing = self.standing(tx, want.workspace) if plan is not None else None
        if plan is None or standing is None:
            return None
        return standing.over(amounts(len(plan.gpus), plan.gpu_model, plan.resources))

    def doubtful(self, tx: Tx) -> Mapping[str, str]:
        """Return what of the queue may run already without this site's knowing, and why."""
        if self._doubtful is None:
            since = restored.doubtful(tx, self.scope, self.cluster_id) if self.queue else ()
            held = self.beginning.holds(tx, self) if self.queue else {}
            self._doubtful = {**held, **dict.fromkeys(since, RESTORED)}
        return self._doubtful

    def ahead(self, tx: Tx) -> Ahead:
        """Return whom a new ask must not overtake: what waits for machines (not for its own quota or access, nor
        for what a restored database does not know)."""
        return self._judged_line(tx).ahead

    def _judged_line(self, tx: Tx) -> Remembered:
        """Judge of the queue what is not known as it stands now."""
        known, ended = self._line, self.fleet.forget_windows(tx.now)
        if known.ended != ended:
            # A window that is over kept asks out of machines that they wait for now.
            self._line = known = Remembered(ended=ended)
        if not known.looked_at:
            if known.at is None or not timedelta() <= tx.now - known.at < LASTS:
                if self.fleet.has_windows:
                    self._line = known = Remembered(ended=ended)
                known.stale |= known.timed
                known.at = tx.now
            known.stale |= known.doubted
            known.looked_at = True
        if known.unknown or known.stale or known.new:
            anew = [one for one in self.queue if known.unknown or one.workspace_id in known.stale]
            more = [one for one in known.new if not known.unknown and one.workspace_id not in known.stale]
            for workspace_id in known.stale:
                known.forget(workspace_id)
            known.unknown, known.new = False, []
            known.stale.clear()
            line = Line(self, tx, known.before)
            for waiting in (*anew, *more):
                want, _ = line.turn(waiting)
                if want is not None:
                    known.ahead.add(want)
                line.stays(waiting)
            known.doubted |= line.doubted
            known.timed |= line.timed
        return known

    def take(self, want: PlacementAsk, plan: Plan) -> None:
        """Count the placement of an ask for which its quota left enough after all of its workspace that waits.

        So the quota holds back what it held back before, and nothing else: it only leaves less where a fair share is
        more than the least.
        """
        self.fleet.take(plan)
        self.counted.take(want.workspace, plan, want.now, want.sure_end)
        self._line.ahead.narrow(want.workspace, plan.resources)

    def wait(self, waiting: Waiting) -> None:
        """Count one more that waits, the last."""
        self.queue.append(waiting)
        self._line.new.append(waiting)

    def go_on(self, waiting: Waiting, want: PlacementAsk, plan: Plan) -> None:
        """Count the placement of what waited."""
        self.queue.remove(waiting)
        self._line.stale.add(waiting.workspace_id)
        self.take(want, plan)

    def refresh(self, tx: Tx, version: int) -> None:
        """Bring it up to `version`, reading only what changed. Without the lock what is read may be newer:
        then it is read again, for its version is."""
        changes = fleet.changed_since(tx, self.scope, self.cluster_id, self.version)
        for id in (*changes.removed, *(facts.id for facts in changes.machines)):
            self.fleet.remove(id)  # all of them before any is put in: names may have moved
            self.counted.replace(id, changes.live.get(id, {}))
        for facts in changes.machines:
            self.fleet.replace(facts)
        if fleet.queue_changed_since(tx, self.scope, self.cluster_id, self.version):
            self.queue = [_waiting(row) for row in workloads.queue(tx, self.scope, self.cluster_id)]
            self.last_queue_no = workloads.last_queue_no(tx, self.scope, self.cluster_id)
        self.grants.clear()
        self.counted.forget_hours()
        self._line = Remembered()
        self.version = version


class Line:
    """A queue whose turns are taken, first come first. Who `stays` stands before those that come after.

    `before`: what of each workspace stands there already.
    """

    def __init__(self, tenancy: Tenancy, tx: Tx, before: dict[str, Before] | None = None) -> None:
        self._tenancy, self._tx = tenancy, tx
        self._before = {} if before is None else before
        self._doubtful = tenancy.doubtful(tx)
        self.spent = False
        """One was held back by GPU-hours: a new month may let it go on, which no version counts."""
        self.timed: set[str] = set()
        """Workspaces of which something was judged by the time."""
        self.doubted: set[str] = set()
        """Workspaces of which something is in doubt."""

    def turn(self, waiting: Waiting) -> tuple[PlacementAsk | None, str]:
        """Return what is asked for now; or None, and why: its quota or access holds it back, no machine."""
        if waiting.id in self._doubtful:
            self.doubted.add(waiting.workspace_id)
            return None, self._doubtful[waiting.id]
        grant = self._tenancy.grant(self._tx, waiting.workspace_id)
        if grant is None:
            return None, NO_ACCESS
        want = waiting.asking(grant.pools, self._tx.now)
        if want.ask.gpus and grant.quota.gpu_hours_month is not None:
            self.timed.add(waiting.workspace_id)
        within, over = self._tenancy.judged(self._tx, want, self._of(waiting))
        if over is None:
            return within, ""
        self.spent = self.spent or isinstance(over, Excess)
        return None, explain(over)

    def stays(self, waiting: Waiting) -> None:
        grant = self._tenancy.grant(self._tx, waiting.workspace_id)
        if grant is not None and grant.quota != NO_LIMIT:
            self._tenancy.after(self._of(waiting), grant, waiting.asking(grant.pools, self._tx.now))

    def _of(self, waiting: Waiting) -> Before:
        return self._before.setdefault(waiting.workspace_id, Before(self._tx.now))


@dataclass
class Remembered:
    """How the queue was judged, by workspace: no one's quota or work changes another's place in it."""

    ahead: Ahead = field(default_factory=Ahead)
    before: dict[str, Before] = field(default_factory=dict)
    """What all of a workspace that waits asks for."""
    unknown: bool = True
    """Nothing was judged yet."""
    stale: set[str] = field(default_factory=set)
    """Workspaces to be judged anew."""
    new: list[Waiting] = field(default_factory=list)
    """What waits since."""
    doubted: set[str] = field(default_factory=set)
    timed: set[str] = field(default_factory=set)
    """As of `Line`."""
    at: datetime | None = None
    ended: int = 0
    """How often windows that were over had been taken away."""
    looked_at: bool = False
    """In this transaction."""

    def forget(self, workspace_id: str) -> None:
        self.ahead.forget(workspace_id)
        self.before.pop(workspace_id, None)
        self.doubted.discard(workspace_id)
        self.timed.discard(workspace_id)


class Fleets:
    """The tenancies remembered. Used by one thread."""

    def __init__(self, beginning: Beginning | None = None) -> None:
        self._beginning = beginning or Beginning()
        self._known: OrderedDict[tuple[str, str], Tenancy] = OrderedDict()

    def locked(self, tx: Tx, scope: Scope, cluster_id: str) -> Tenancy:
        """Lock the tenancy, and return it as it is now."""
        return self._at(tx, scope, cluster_id, fleet.lock(tx, scope, cluster_id))

    def seen(self, tx: Tx, scope: Scope, cluster_id: str) -> Tenancy:
        """Return the tenancy as it was a moment ago, for questions: nothing is locked."""
        return self._at(tx, scope, cluster_id, fleet.version_of(tx, scope, cluster_id))

    def _at(self, tx: Tx, scope: Scope, cluster_id: str, version: int) -> Tenancy:
        known = self._known.setdefault((cluster_id, scope.org), Tenancy(cluster_id, scope, self._beginning))
        self._known.move_to_end((cluster_id, scope.org))
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        if known.version != version:
            known.refresh(tx, version)
        known.begin()
        return known

    def forget(self) -> None:
        """Nothing that is remembered may be trusted."""
        self._known.clear()


def _waiting(row: Row) -> Waiting:
    ask = row["ask"]
    amounts = Ask(ask["gpus"], ask["vcpu"], ask["ram_mib"], ask["storage_mib"])
    chosen = (ask["machine"], ask["pool"], ask["gpu_model"], bool(ask.get("drives")))
    want = PlacementAsk(amounts, None, *chosen, workspace=row["workspace_id"])
    left = row["time_limit_s"] if row["time_left_s"] is None else row["time_left_s"]
    return Waiting(row["id"], row["workspace_id"], row["name"], want, left, row["reason"])
