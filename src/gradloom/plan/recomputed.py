"""The choice of nodes to compute again, so that no step has more than a number of bytes alive, at the least time.

A node may be cloned across the longest pause between two of its uses, such as that from the forward to the backward
part: its bytes are free in the pause, and its time counts twice. Inputs of the clone that are not alive any more are
cloned as well. Nodes are taken in the order of seconds per byte, the earliest first, if

  - the pause holds the step that has the most bytes alive, and
  - no step gets more bytes than the target by their clones: a chain of cloned nodes ends where its clones would not fit
    together, and the next node is kept.

Then clones are taken back as far as the target allows, the most expensive first.

Lives counts bytes at the steps of the program without clones. The planner, which is exact, measures the program with
clones, and the target is corrected by the difference.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from ..graph.graph import view_base
from ..graph.value import Node, Value
from ..transform.program import Program
from ..transform.recompute import may_recompute, recompute
from .memory import aligned
from .order import kernel_order
from .plan import Plan, Recomputed
from .schedule import counterparts

Seconds = Callable[[Node], float]
PlanOf = Callable[[Program], Plan]

SMALL = 500  # nodes of a program that is small
TOGETHER = 16  # nodes that are cloned in one step, at most
TAKEN_BACK = 2000  # clones that are tried, at most
PLANS = 6  # that are made to correct the target, at most
FEW = 2  # plans that are made to see whether there is room
CLOSE = 0.01  # of the budget: so much of it may be left unused
BISECTIONS = 8  # to find the least budget
CURVE = 5  # points of memory against time


@dataclass(eq=False)
class Life:
    """A node with a kernel. Steps count the kernels of the program in their order.

    bytes: of its outputs; reads: the nodes whose outputs it reads; uses: its own step and those that read its outputs;
    demands: the clones that read them, which do so at their `begin`. free: it may be cloned. split: of a node that is
    cloned, the last step that reads the original. last: at which the original is needed; begin, end: of the clone, -1
    where nothing reads one; where nothing but clones in front of one step reads it, end is begin - 1.
    """

    node: Node
    step: int
    bytes: int
    seconds: float
    reads: tuple[Life, ...]
    uses: list[int]
    free: bool
    demands: dict[Life, int] = field(default_factory=dict)
    split: int | None = None
    last: int = -1
    begin: int = -1
    end: int = -1

    def pause(self) -> tuple[int, int]:
        """The two uses around the longest pause."""
        pairs = zip(self.uses, self.uses[1:], strict=False)
        return max(pairs, key=lambda pair: pair[1] - pair[0], default=(self.step, self.step))


class Lives:
    """The bytes alive at each step of a program in which some nodes are cloned.

    alive: int64[steps]; before: bytes beyond it while clones run: those that a step reads first run directly before
    it, in the order of their originals. cost: seconds that clones add. extra: bytes that a node needs for itself
    while it runs.
    """

    def __init__(self, program: Program, seconds: Seconds, extra: Mapping[Node, int]) -> None:
        steps, late = kernel_order(program.nodes, view_base)
        kept = {view_base(v).node for v in program.outputs}
        read = {view_base(v) for node in program.nodes for v in node.inputs if v is not None}
        read.update(view_base(v) for v in program.outputs)
        made: dict[Node, Life] = {}
        for i, node in enumerate(steps):
            sources = dict.fromkeys(view_base(v).node for v in node.inputs if v is not None)
            reads = tuple([made[n] for n in sources if n in made])
            free = may_recompute(node) and node not in late and node not in kept
            made[node] = Life(node, i, _written(node, read), max(seconds(node), 1e-9), reads, [i], free)
            for one in reads:
                one.uses.append(i)
                one.free = one.free and not (node.op.updates or node.op.guard)
        for node in kept & made.keys():
            made[node].uses.append(len(steps) - 1)
        self.lives = list(made.values())
        self.positions = {node: i for i, node in enumerate(program.nodes)}
        self.seconds = sum(one.seconds for one in self.lives)
        self.own = np.array([extra.get(one.node, 0) + one.bytes for one in self.lives], np.int64)
        self.groups: dict[int, set[Life]] = {}  # step -> the clones that it needs first
        self.journal: list[tuple[Life, tuple[int | None, int, int, int], dict[Life, int]]] = []
        self.reset()
        self.most = self.peak()  # without clones

    def reset(self) -> None:
        """No clones."""
        self.alive = self.own.copy()
        self.before = np.zeros(len(self.lives), np.int64)
        self.cost = 0.0
        self.groups.clear()
        for one in self.lives:
            one.demands, one.split, one.last, one.begin, one.end = {}, None, one.uses[-1], -1, -1
            self.alive[one.step + 1 : one.last + 1] += one.bytes

    def bytes(self) -> np.ndarray:
        """At each step, with its clones."""
        return self.alive + self.before

    def peak(self) -> int:
        return int(self.bytes().max(initial=0))

    def cloned(self) -> list[Life]:
        return [one for one in self.lives if one.begin >= 0]

    def clone(self, *nodes: Life) -> None:
        """Clone nodes across their pauses."""
        for one in nodes:
            self._note(one)
            one.split = one.pause()[0]
        self._settle(nodes)

    def keep(self, one: Life) -> None:
        """Take a clone back; so are clones that were needed for it alone."""
        self._note(one)
        one.split = None
        self._settle((one,))

    def saved(self) -> tuple[np.ndarray, np.ndarray, float]:
        """For `undo`, which returns to this state."""
        self.journal.clear()
        return self.alive.copy(), self.before.copy(), self.cost

    def undo(self, state: tuple[np.ndarray, np.ndarray, float]) -> None:
        for one, (split, last, begin, end), demands in reversed(self.journal):
            self._regroup(one, begin)
            one.split, one.last, one.begin, one.end, one.demands = split, last, begin, end, demands
        self.alive, self.before, self.cost = state
        self.journal.clear()

    def until(self) -> dict[Node, int]:
        """As transform/recompute.py takes it: of each cloned node the position of the last reader of the original."""
        steps = [one.node for one in self.lives]
        return {one.node: self.positions[steps[one.split]] for one in self.cloned() if one.split is not None}

    def _note(self, one: Life) -> None:
        self.journal.append((one, (one.split, one.last, one.begin, one.end), dict(one.demands)))

    def _regroup(self, one: Life, begin: int) -> None:
        if one.begin != begin:
            if one.begin >= 0:
                self.groups[one.begin].remove(one)
            if begin >= 0:
                self.groups.setdefault(begin, set()).add(one)

    def _settle(self, changed: Sequence[Life]) -> None:
        """Lifetimes of these nodes and their clones from their readers, and then those of the inputs of clones: the
        last step first, so that each is visited once."""
        heap = [-one.step for one in changed]
        heapq.heapify(heap)
        dirty: set[int] = set()
        waiting = set(heap)
        while heap:
            step = heapq.heappop(heap)
            waiting.discard(step)
            one = self.lives[-step]
            uses = [*one.uses, *one.demands.values()]
            latest = max(uses)
            if one.split is None and latest > one.uses[-1] and one.free:
                one.split = one.uses[-1]  # a clone reads it after its life
            if one.split is not None and latest > one.split:
                late = [u for u in uses if u > one.split]
                last, begin, end = max(u for u in uses if u <= one.split), min(late), max(late)
                if begin == end and begin not in one.uses:
                    end -= 1  # only clones read it, which run before the step
            else:
                last, begin, end, one.split = latest, -1, -1, None
            before = one.begin
            dirty.update((before, begin))
            self._move(one, last, begin, end)
            if begin == before:
                continue
            self.cost += one.seconds * ((begin >= 0) - (before >= 0))
            for source in one.reads:
                self._note(source)
                if begin >= 0:
                    source.demands[one] = begin
                else:
                    source.demands.pop(one, None)
                if -source.step not in waiting:
                    waiting.add(-source.step)
                    heapq.heappush(heap, -source.step)
        for step in dirty - {-1}:
            self._recount(step)

    def _move(self, one: Life, last: int, begin: int, end: int) -> None:
        self._regroup(one, begin)
        if one.bytes:
            self.alive[one.step : one.last + 1] -= one.bytes
            self.alive[one.step : last + 1] += one.bytes
            if one.begin >= 0:
                self.alive[one.begin : one.end + 1] -= one.bytes
            if begin >= 0:
                self.alive[begin : end + 1] += one.bytes
        one.last, one.begin, one.end = last, begin, end

    def _recount(self, step: int) -> None:
        """The bytes beyond `alive` while the clones of a step run."""
        group = sorted(self.groups.get(step, ()), key=lambda one: one.step)
        order = {one: i for i, one in enumerate(group)}
        change = [0] * (len(group) + 1)
        lasting = 0
        for i, one in enumerate(group):
            change[i] += one.bytes
            if one.end >= step:
                lasting += one.bytes
            else:
                change[1 + max(order[reader] for reader, at in one.demands.items() if at == step)] -= one.bytes
        most = max(accumulate(change))
        self.before[step] = max(0, most - lasting - int(self.own[step]))


def _written(node: Node, read: Collection[Value]) -> int:
    """Bytes of the outputs of a node but for those that it leaves out."""
    if node.op.updates:
        return 0
    slots = [node.op.slot(node.op.outputs, v.index) for v in node.outputs]
    return sum(aligned(v.bytes) for v, slot in zip(node.outputs, slots, strict=True) if v in read or not slot.optional)


def choose(lives: Lives, target: int) -> bool:
    """Clone nodes until no step has more than `target` bytes alive, at little time; whether that was possible. The
    best of several orders, of more where the program is small."""
    found: list[tuple[float, Order]] = []
    orders = _orders(lives)
    for order in orders:
        if _clone_until(lives, target, order):
            _take_back(lives, target)
            found.append((lives.cost, order))
    if not found:
        return False
    best = min(found, key=lambda one: one[0])[1]
    if best is not orders[-1]:
        _clone_until(lives, target, best)
        _take_back(lives, target)
    return True


def can_choose(lives: Lives, target: int) -> bool:
    """Whether `choose` is possible."""
    return any(_clone_until(lives, target, order) for order in _orders(lives))


def _orders(lives: Lives) -> tuple[Order, ...]:
    return ORDERS if len(lives.lives) <= SMALL else FAST_ORDERS


Order = Callable[[Life, float], float]
# Of a node and the seconds that its clone adds, with the clones of its inputs: the least first.
ORDERS: tuple[Order, ...] = (
    lambda one, added: added / one.bytes,
    lambda one, added: -one.bytes,
    lambda one, added: one.step,
)
FAST_ORDERS = ORDERS[:2]


def _clone_until(lives: Lives, target: int, order: Order) -> bool:
    """Clone nodes in this order, neighbours in it together as long as that works."""
    lives.reset()
    heap = []
    for i, one in enumerate(lives.lives):
        before, after = one.pause()
        if one.free and one.bytes and after - before > 1:
            heap.append((order(one, one.seconds), i))
    heapq.heapify(heap)
    waiting: list[tuple[float, int]] = []
    level: float | None = None
    progress, size = False, 1
    now = lives.bytes()
    while now.max(initial=0) > target:
        if not heap:
            if not progress or not waiting:
                return False
            heap, waiting, progress = waiting, [], False
            heapq.heapify(heap)
        most, keys = now.argmax(), list[tuple[float, int]]()
        while heap and len(keys) < size and (not keys or _near(heap[0][0], keys[0][0])):
            one = lives.lives[heap[0][1]]
            before, after = one.pause()
            if one.split is not None:
                heapq.heappop(heap)
            elif before < most < after:
                keys.append(heapq.heappop(heap))
            else:
                waiting.append(heapq.heappop(heap))
        if not keys:
            continue
        key, nodes = keys[0][0], [lives.lives[i] for _, i in keys]
        state, cost = lives.saved(), lives.cost
        lives.clone(*nodes)
        true, then = order(nodes[0], lives.cost - cost), lives.bytes()
        dear = len(nodes) == 1 and true > key and not _near(true, key)  # with its inputs
        if not dear and then[then > now].max(initial=0) <= target:
            now, progress, size = then, True, min(2 * size, TOGETHER)
            if level is None or (key > level and not _near(key, level)):
                level = key
                heap += waiting
                waiting = []
                heapq.heapify(heap)
            continue
        lives.undo(state)
        if len(nodes) > 1:
            size = len(nodes) // 2
            for entry in keys:
                heapq.heappush(heap, entry)
        elif dear:
            heapq.heappush(heap, (true, keys[0][1]))
        else:
            waiting += keys
    return True


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.01 * abs(b)


def _take_back(lives: Lives, target: int) -> None:
    """Keep what may be kept, the most expensive first."""
    now = lives.bytes()
    for one in sorted(lives.cloned(), key=lambda one: -one.seconds)[:TAKEN_BACK]:
        if one.begin >= 0 and now[one.last + 1 : one.begin].max(initial=0) + one.bytes <= target:
            state, cost = lives.saved(), lives.cost
            lives.keep(one)
            now = lives.bytes()
            if now.max() > target or lives.cost >= cost:
                lives.undo(state)
                now = lives.bytes()


class Budget:
    """Plans of one program for different budgets. whole: its plan without clones, if it is known. plan_of: plans and
    proves a program; seconds: predicted time of a node."""

    def __init__(self, program: Program, plan_of: PlanOf, seconds: Seconds, whole: Plan | None = None) -> None:
        self.program, self.plan_of = program, plan_of
        self.whole = plan_of(program) if whole is None else whole
        origins = counterparts(program.nodes, self.whole.laid.program.nodes)
        needs = zip(self.whole.order.steps, self.whole.needs, strict=True)
        extra = {origins[node]: one.workspace_bytes for node, one in needs if node in origins}
        self.lives = Lives(program, seconds, extra)
        self.more = self.whole.peak_bytes - self.lives.peak()  # bytes of a plan beyond it

    def within(self, budget: int) -> tuple[Program, Plan] | None:
        """The program with clones and its plan: the fastest found with a peak of at most `budget` bytes; None where
        there is none."""
        if self.whole.peak_bytes <= budget:
            return self.program, self.whole
        best: tuple[Program, Plan] | None = None
        low, high = 0, self.lives.most  # targets that are too small, and too large
        target, plans, more = budget - self.more, 0, max(1, budget // 64)
        while plans < PLANS and high - low > max(1, high // 256):
            if not low < target < high:
                target = (low + high) // 2
            if not choose(self.lives, target):
                if best is None and self.smallest[1].peak_bytes > budget:
                    return None
                low, target, more = target, target + more, 2 * more
                continue
            plans += 1
            made = self.made()
            room = budget - made[1].peak_bytes
            if room < 0:
                high, target = target, target + room
                continue
            if best is None or made[1].recomputed.overhead < best[1].recomputed.overhead:
                best = made
            if room <= CLOSE * budget:
                break
            low, target = target, target + room
        if best is None and self.smallest[1].peak_bytes <= budget:
            return self.smallest
        return best

    def some_within(self, budget: int) -> Plan | None:
        """A plan of at most `budget` bytes, found in few plans; None where that finds none."""
        if self.whole.peak_bytes <= budget:
            return self.whole
        target = budget - self.more
        for _ in range(FEW):
            if not can_choose(self.lives, target):
                return None
            plan = self.made()[1]
            if plan.peak_bytes <= budget:
                return plan
            target += budget - plan.peak_bytes
        return None

    def made(self) -> tuple[Program, Plan]:
        """The program and plan with the clones that are chosen now."""
        program = recompute(self.program, self.lives.until())
        cloned = self.lives.cloned()
        found = Recomputed(len(cloned), sum(one.bytes for one in cloned), self.lives.cost / self.lives.seconds)
        return program, replace(self.plan_of(program), recomputed=found)

    @cached_property
    def smallest(self) -> tuple[Program, Plan]:
        """The program and plan of about the least peak for which one is found."""
        low, high = 0, self.lives.most
        for _ in range(BISECTIONS):
            middle = (low + high) // 2
            low, high = (low, middle) if can_choose(self.lives, middle) else (middle, high)
        choose(self.lives, high)
        made = self.made()
        return made if made[1].peak_bytes < self.whole.peak_bytes else (self.program, self.whole)

    def curve(self) -> list[tuple[int, float, int]]:
        """(peak bytes, relative time, number of clones) of at most CURVE plans, from the fastest to the
        smallest. Those in between are estimates, which differ from their plans by about a hundredth."""
        least, whole = self.smallest[1], self.whole.peak_bytes
        points = [(whole, 1.0, 0)]
        for k in range(1, CURVE - 1):
            target = whole - (whole - least.peak_bytes) * k // (CURVE - 1) - self.more
            if choose(self.lives, target):
                time = 1 + self.lives.cost / self.lives.seconds
                points.append((self.lives.peak() + self.more, time, len(self.lives.cloned())))
        smallest = least.peak_bytes, 1 + least.recomputed.overhead, least.recomputed.nodes
        return sorted({*points, smallest}, reverse=True)
