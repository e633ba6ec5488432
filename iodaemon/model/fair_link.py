"""A link that its flows share equally within their caps: virtual-time fair queueing.

Theory: max-min fairness with weights gives every flow ``weight x min(pace, level)`` bytes/s, where
its pace is its cap divided by its weight, and the level is such that the capacity is used up or
every flow has its cap. Virtual time goes on at the level. Flows of one pace share a lane, whose own
clock goes on at ``min(pace, level)``: on it the end of a flow is fixed when it comes, whoever else
comes and goes (Demers, Keshav, Shenker, SIGCOMM 1989; Parekh and Gallager, IEEE/ACM ToN 1(3),
1993). A capped lane (pace below the level) sees its next end at a fixed time, an elastic one at a
fixed virtual time: two heaps. Lanes are ordered by pace and the level lies between two of them;
when it moves, whole lanes change sides, not flows.

Cost: O(log n) for a flow that comes, goes or arrives and for a lane that changes sides, with n
flows; a new pace is put into a sorted list. Sums are kept, and added up anew now and then, so
that rounding does not build up.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from typing import Final

from iodaemon.model.backlog import waiting_capacity
from iodaemon.model.flow import Entry, Flow, Lane
from iodaemon.model.scaling import Scaling, constant_scaling

_REFRESH_ABOVE: Final = 64
"""Sums are added up anew, and entries that no longer hold swept out, after at least so many."""


class FairLink:
    """Flows, and what each of them gets.

    Use: ``flow_to`` the present; take what has arrived (``reach``), add and remove flows, change
    the capacity; ``settle``. Invariant: between two calls of ``settle`` all rates are constant.

    Attributes:
        capacity_bytes_per_s: what it delivers to one stream.
        next_s: when a flow arrives by itself; infinite for never.
        level: what a flow of weight 1 without a cap gets, or would get in place of the fastest,
            bytes/s.
        is_full: True when nothing of the capacity is left.
        count: flows on it.
        capped_rate: what the flows get that their own cap holds back, bytes/s together.
        elastic_weight: the sum of the weights of all others.
        busy_s: integral of the used part of the capacity.
    """

    def __init__(
        self,
        capacity_bytes_per_s: float,
        *,
        scaling: Scaling = constant_scaling,
        counts_waiting: bool = False,
        now_s: float = 0.0,
    ) -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s
        self.next_s = math.inf
        self.level = capacity_bytes_per_s
        self.is_full = False
        self.count = 0
        self.capped_rate = 0.0
        self.elastic_weight = 0.0
        self.busy_s = 0.0
        self._scaling = scaling
        self._counts_waiting = counts_waiting
        self._now_s = now_s
        self._capacity = capacity_bytes_per_s
        self._tickets = itertools.count()
        self._virtual = 0.0
        self._waited = 0.0
        self._lanes: dict[float, Lane] = {}
        self._paces: list[float] = []
        self._capped_lanes = 0
        self._demand = 0.0
        self._changes = 0
        self._by_virtual: list[Entry] = []
        self._by_time: list[Entry] = []
        self._elastic_head: Entry | None = None
        self._elastic_s = math.inf
        self._capped_s = math.inf

    # -- what holds now ----------------------------------------------------------------------

    @property
    def rate_bytes_per_s(self) -> float:
        """What all flows get together."""
        return self._capacity if self.is_full else self.capped_rate

    @property
    def demand_bytes_per_s(self) -> float:
        """What all flows that have a cap would take together."""
        return self._demand

    @property
    def busy_ratio(self) -> float:
        """The used part of the capacity."""
        return 1.0 if self.is_full else min(1.0, self.capped_rate / self._capacity)

    @property
    def fastest(self) -> float:
        """The largest pace of all flows; 0 without any."""
        return self._paces[-1] if self._paces else 0.0

    def rate(self, flow: Flow) -> float:
        """What the flow gets, bytes/s."""
        return flow.weight * min(flow.pace, self.level)

    def busy_part(self, flow: Flow) -> float:
        """The part of its share that the flow takes: 1 unless its own cap holds it back."""
        return min(1.0, flow.pace / self.level)

    def left(self, flow: Flow) -> float:
        """Bytes of the flow that have not arrived."""
        if flow.lane is None or flow.entry is None:
            return flow.left_bytes
        return max(0.0, (flow.entry[0] - self._clock(flow.lane)) * flow.weight)

    def waited(self, flow: Flow) -> float:
        """How long the flow has waited for the link in this stay, s: ``busy_part`` over time."""
        if flow.lane is None:
            return flow.waited_s
        return self._lane_waited(flow.lane) + flow.waited_s

    # -- changing ----------------------------------------------------------------------------

    def flow_to(self, now_s: float) -> None:
        """Let everything flow until then, at most to ``next_s``."""
        interval_s = now_s - self._now_s
        if interval_s > 0.0:
            self._now_s = now_s
            if self.count:
                if self.elastic_weight > 0.0:
                    self._virtual += self.level * interval_s
                self._waited += interval_s / self.level
                self.busy_s += interval_s if self.is_full else self.busy_ratio * interval_s

    def add(self, flow: Flow) -> None:
        """A flow comes, with ``left_bytes`` to go; infinite for one that only leaves."""
        lane = self._lanes.get(flow.pace)
        if lane is None:
            lane = self._open(flow.pace)
        end = self._clock(lane) + flow.left_bytes / flow.weight
        entry = (end, flow.number, next(self._tickets), flow)
        flow.lane, flow.entry = lane, entry
        flow.waited_s = -self._lane_waited(lane)
        heapq.heappush(lane.heap, entry)
        lane.count += 1
        self.count += 1
        self._weigh(lane, flow.weight)
        if lane.heap[0] is entry:
            self._announce(lane)

    def remove(self, flow: Flow) -> None:
        """A flow goes wherever it is; it keeps what is left of it."""
        lane = flow.lane
        assert lane is not None
        flow.left_bytes = self.left(flow)
        was_head = flow.entry is lane.heap[0]
        self._leave(flow, lane)
        if lane.count and was_head:
            self._announce(lane)

    def reach(self) -> list[Flow]:
        """Take off all flows that have arrived by now."""
        arrived: list[Flow] = []
        if self._elastic_s <= self._now_s:
            head = self._head(self._by_virtual)
            if head is not None and head is self._elastic_head:  # due now, whatever was rounded
                self._virtual = max(self._virtual, head[0])
            while (lane := self._due(self._by_virtual, self._virtual, self.level)) is not None:
                arrived.append(self._arrive(lane))
        if self._capped_s <= self._now_s:
            while (lane := self._due(self._by_time, self._now_s, 1.0)) is not None:
                arrived.append(self._arrive(lane))
        return arrived

    def settle(self) -> None:
        """Find the rates that hold from now on, and when the next flow arrives."""
        if self._changes > _REFRESH_ABOVE + 8 * self.count:
            self._refresh()
        self._capacity = self._find_capacity()
        level = self._elastic_level()
        paces = self._paces
        while self._capped_lanes and paces[self._capped_lanes - 1] > level:
            self._switch(self._lanes[paces[self._capped_lanes - 1]], is_capped=False)
            level = self._elastic_level()
        while self._capped_lanes < len(paces) and paces[self._capped_lanes] < level:
            self._switch(self._lanes[paces[self._capped_lanes]], is_capped=True)
            level = self._elastic_level()
        if self.elastic_weight > 0.0:
            self.level, self.is_full = level, True
        else:
            left = max(0.0, self._capacity - self.capped_rate)
            self.level = self.fastest + left
            self.is_full = left == 0.0
        self._find_next()

    # -- lanes -------------------------------------------------------------------------------

    def _clock(self, lane: Lane) -> float:
        if lane.is_capped:
            return lane.base + lane.pace * (self._now_s - lane.mark)
        return lane.base + (self._virtual - lane.mark)

    def _lane_waited(self, lane: Lane) -> float:
        if lane.is_capped:
            return lane.waited_base + lane.pace * (self._waited - lane.waited_mark)
        return lane.waited_base + (self._now_s - lane.waited_mark)

    def _open(self, pace: float) -> Lane:
        index = bisect_left(self._paces, pace)
        is_capped = index < self._capped_lanes
        lane = Lane(pace, is_capped=is_capped)
        self._mark(lane)
        self._paces.insert(index, pace)
        self._lanes[pace] = lane
        self._capped_lanes += is_capped
        return lane

    def _close(self, lane: Lane) -> None:
        del self._paces[bisect_left(self._paces, lane.pace)]
        del self._lanes[lane.pace]
        lane.entry = None
        self._capped_lanes -= lane.is_capped
        if self._capped_lanes == 0:
            self.capped_rate = 0.0
        if self._capped_lanes == len(self._paces):
            self.elastic_weight = self._virtual = 0.0
            self._by_virtual.clear()
        if not self._paces:
            self._demand = 0.0

    def _mark(self, lane: Lane) -> None:
        """Its clocks go on from here."""
        lane.mark = self._now_s if lane.is_capped else self._virtual
        lane.waited_mark = self._waited if lane.is_capped else self._now_s

    def _switch(self, lane: Lane, *, is_capped: bool) -> None:
        """The level has passed the lane's pace."""
        lane.base, lane.waited_base = self._clock(lane), self._lane_waited(lane)
        lane.is_capped = is_capped
        self._mark(lane)
        self._announce(lane)
        rate = lane.pace * lane.weight
        if is_capped:
            self._capped_lanes += 1
            self.capped_rate += rate
            self.elastic_weight -= lane.weight
        else:
            self._capped_lanes -= 1
            self.capped_rate = self.capped_rate - rate if self._capped_lanes else 0.0
            self.elastic_weight += lane.weight
        if self._capped_lanes == len(self._paces):
            self.elastic_weight = self._virtual = 0.0
            self._by_virtual.clear()

    def _weigh(self, lane: Lane, weight: float) -> None:
        self._changes += 1
        lane.weight += weight
        if lane.pace < math.inf:
            self._demand += lane.pace * weight
        if lane.is_capped:
            self.capped_rate += lane.pace * weight
        else:
            self.elastic_weight += weight

    def _leave(self, flow: Flow, lane: Lane) -> None:
        flow.waited_s += self._lane_waited(lane)
        flow.lane = flow.entry = None
        lane.count -= 1
        self.count -= 1
        self._weigh(lane, -flow.weight)
        if not lane.count:
            self._close(lane)
        elif len(lane.heap) > 2 * lane.count + _REFRESH_ABOVE:
            lane.sweep()

    # -- what comes next ---------------------------------------------------------------------

    def _announce(self, lane: Lane) -> None:
        """Enter when the lane's head arrives into the heap of its side."""
        end, number, _, _ = lane.head()
        if lane.is_capped:
            heap, due = self._by_time, lane.mark + (end - lane.base) / lane.pace
        else:
            heap, due = self._by_virtual, lane.mark + (end - lane.base)
        lane.entry = (due, number, next(self._tickets), lane)
        heapq.heappush(heap, lane.entry)
        if len(heap) > 2 * len(self._lanes) + _REFRESH_ABOVE:
            heap[:] = [entry for entry in heap if entry[3].entry is entry]
            heapq.heapify(heap)

    def _head(self, heap: list[Entry]) -> Entry | None:
        """The first entry that still holds."""
        while heap and heap[0][3].entry is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _due(self, heap: list[Entry], clock: float, speed: float) -> Lane | None:
        """The next lane of the heap whose head has arrived; the clock goes at that speed."""
        head = self._head(heap)
        if head is None or self._now_s + (head[0] - clock) / speed > self._now_s:
            return None
        lane: Lane = head[3]
        return lane

    def _arrive(self, lane: Lane) -> Flow:
        flow: Flow = lane.head()[3]
        heapq.heappop(lane.heap)
        flow.left_bytes = 0.0
        self._leave(flow, lane)
        if lane.count:
            self._announce(lane)
        return flow

    def _find_next(self) -> None:
        self._elastic_s = self._capped_s = math.inf
        if self._by_virtual:
            self._elastic_head = head = self._head(self._by_virtual)
            if head is not None:
                left = max(0.0, head[0] - self._virtual)
                self._elastic_s = self._now_s + left / self.level
        if self._by_time:
            head = self._head(self._by_time)
            if head is not None:
                self._capped_s = head[0]
        self.next_s = min(self._elastic_s, self._capped_s)

    def _find_capacity(self) -> float:
        if not self._counts_waiting:
            return self.capacity_bytes_per_s * self._scaling(self.count or 1)
        lanes = [(pace, self._lanes[pace].weight) for pace in self._paces]
        return waiting_capacity(self.capacity_bytes_per_s, self._scaling, lanes)

    def _elastic_level(self) -> float:
        left = self._capacity - self.capped_rate
        if self._capped_lanes < len(self._paces):
            return left / self.elastic_weight
        return math.inf if left >= 0.0 else -math.inf

    def _refresh(self) -> None:
        """Add up all sums anew: O(n) after n changes."""
        self._changes = 0
        for lane in self._lanes.values():
            lane.sweep()
        capped = [lane for lane in self._lanes.values() if lane.is_capped]
        elastic = [lane for lane in self._lanes.values() if not lane.is_capped]
        self.capped_rate = math.fsum(lane.pace * lane.weight for lane in capped)
        self.elastic_weight = math.fsum(lane.weight for lane in elastic)
        finite = (lane.pace * lane.weight for lane in elastic if lane.pace < math.inf)
        self._demand = math.fsum((self.capped_rate, *finite))
