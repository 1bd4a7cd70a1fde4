"""What each Xid means here: the table of rules, as data (spec 10, "GPU faults"; spec 40, "GPUs and their health").

An Xid is the number with which the NVIDIA driver reports an error in the kernel's log. A rule
changes here, without new agents: they send the line, and the site judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class Policy(str, Enum):
    """What the site does about an Xid."""

    FENCE = "fence"
    EVENT = "event"  # told, no fence
    LOOK = "look"  # told as something that a person should look at, no fence
    FATAL = "fatal"  # fences when the line says Fatal; told when it says Nonfatal
    RECOVERY = "recovery"  # fences when the driver asks for a reset or more
    NVLINK = "nvlink"  # fences, unless the registers show only errors that the link corrects


@dataclass(frozen=True)
class Rule:
    policy: Policy
    meaning: str
    """A few words for people; "" = the driver says nothing useful of it."""
    reason: str
    """Why this policy."""


UNKNOWN = Rule(Policy.LOOK, "not in the table", "no rule: a person decides")

# numbers | policy | meaning | reason
_TABLE = """
13          | event    | graphics engine exception              | the application's
14,17       | event    | not used                               | no known harm
15,20-23    | event    | video or display unit, old drivers     | no known harm
16,19       | event    | display hangs                          | nobody computes on a display
18          | event    | bus mastering is off                   | other Xids follow if it is the GPU
24,30       | event    | semaphore wait failed                  | the application's
25          | event    | push buffer is not valid               | the application's
26          | event    | frame buffer timeout                   | other Xids follow if it is the GPU
27-29,34-36 | event    | video processor exception              | the video unit only
31          | event    | memory page fault                      | the application's
32          | event    | push buffer is corrupt                 | application or driver
33          | event    | micro-controller error, old drivers    | other Xids follow if it is the GPU
37,38       | event    | driver firmware error                  | the driver's
39-41       | event    | copy engine exception                  | the application's
42,47       | event    | video processor exception              | the video unit only
43          | event    | a channel was stopped                  | the application's
44          | event    | fault while contexts were switched     | the application's
45          | event    | clean-up after another error           | the other Xid is what counts
46          | fence    | the GPU stopped working                | needs a reset
48          | fence    | uncorrectable memory error             | memory gave wrong data
49-53       | event    | not used                               | no known harm
54          | fence    | auxiliary power is not connected       | the card cannot be used until a person acts
55          | event    | not used                               | no known harm
56          | event    | display error                          | nobody computes on a display
57          | fence    | memory interface cannot be set up      | memory cannot be trusted
58          | fence    | memory interface is unstable           | memory cannot be trusted
59          | event    | micro-controller error, old drivers    | other Xids follow if it is the GPU
60          | event    | video processor exception              | the video unit only
61          | look     | power controller hit a breakpoint      | may come before it halts
62          | fence    | power controller halted                | needs a reset
63          | event    | a memory row was set to be replaced    | works as designed; a reset makes it so
64          | fence    | a memory row could not be replaced     | the card is to be exchanged
65          | event    | video encoder exception                | the video unit only
66,67       | event    | illegal access by the driver           | the driver's
68          | event    | video decoder 0                        | the video unit only
69          | event    | graphics engine class error            | the application's
70-72       | event    | copy engine 3, 4 or 5                  | the application's
73          | event    | video encoder 2                        | the video unit only
74          | nvlink   | NVLink error                           | links that cannot be trusted corrupt collectives
75-77       | event    | copy engine 6, 7 or 8                  | the application's
78          | event    | a virtual GPU did not start            | software
79          | fence    | fallen off the bus                     | the GPU cannot be reached
80          | event    | corrupt data in the push buffer        | the application's
81          | fence    | VGA subsystem error                    | hardware is its only known cause
82          | event    | JPEG unit 0                            | the video unit only
83,84       | event    | video decoder 1 or 2                   | the video unit only
85          | event    | copy engine 9                          | the application's
86          | event    | optical flow unit                      | the video unit only
87          | event    | reserved                               | no known harm
88,89       | event    | video decoder 3 or 4                   | the video unit only
90,91       | event    | reserved                               | no known harm
92          | event    | many corrected memory errors           | a trend: data was right
93          | event    | settings memory wears out              | no harm to computing
94          | fence    | contained memory error                 | uncorrectable, as by the counters
95          | fence    | uncontained memory error               | nothing on the GPU can be trusted until a reset
96-98       | event    | video decoder 5, 6 or 7                | the video unit only
99-105      | event    | JPEG units 1 to 7                      | the video unit only
106,107     | event    | test message of the management bus     | a test
108         | event    | reserved                               | no known harm
109         | event    | switching contexts took too long       | mostly the application; the recovery action decides
110         | fence    | security fault                         | needs a reset
111         | event    | several display errors                 | nobody computes on a display
112-118     | event    | display error                          | nobody computes on a display
119         | fence    | GPU firmware does not answer           | the GPU is silent
120         | fence    | GPU firmware failed                    | the GPU is silent
121         | event    | chip-to-chip link, corrected           | data was right
122-124     | event    | power controller and its flash         | settings only
125         | event    | settings memory's file system          | settings only
126-135     | event    | copy engine 10 to 19                   | the application's
136         | fence    | NVLink could not be brought up         | the link is missing
137         | event    | NVLink access was not allowed          | the application's
138         | event    | reserved                               | no known harm
139         | event    | optical flow unit 1                    | the video unit only
140         | fence    | memory error that was not recovered    | memory gave wrong data
141         | event    | fast path of the driver                | software
142         | event    | video encoder 3                        | the video unit only
143         | fence    | the GPU could not be initialised       | needs a reset
144         | fatal    | NVLink: SAW unit                       | the line says how bad it is
145         | fatal    | NVLink: RLW unit                       | the line says how bad it is
146         | fatal    | NVLink: TLW unit                       | the line says how bad it is
147         | fatal    | NVLink: TREX unit                      | the line says how bad it is
148         | fatal    | NVLink: link control                   | the line says how bad it is
149         | fatal    | NVLink: network interface              | the line says how bad it is
150         | fatal    | NVLink: MSE unit                       | the line says how bad it is
151         | event    | key rotation failed                    | the virtual machine's
152,153     | event    | deep learning accelerator              | not the GPU
154         | recovery | the driver asks for a recovery action  | a GPU that needs a reset cannot be given away
155         | fence    | NVLink, found by software              | needs a reset
156         | event    | a resource was retired                 | a reset makes it so
157         | look     | a resource could not be retired        | a reset may be due
158         | fence    | fatal timeout                          | the GPU hangs
159         | event    | chip interface, no data concerned      | the memory manager's
160         | event    | a channel was retired                  | works as designed
161         | look     | a channel could not be retired         | may come before worse
162         | event    | power smoothing is on again            | undone by itself
163         | event    | power smoothing is off                 | no harm to computing
164         | event    | power smoothing wears out              | no harm to computing
165         | look     | power smoothing is worn out            | the card may be due for exchange
166         | event    | confidential mode: traffic too early   | software
167         | fence    | fatal PCIe timeout                     | the bus cannot be trusted
168         | look     | protected memory has errors            | there may be less memory than before
169         | fence    | security controller halted             | needs a reset
170         | event    | confidential mode: interrupt           | software
171         | fence    | uncorrectable error in DRAM            | detail of Xid 48
172         | fence    | uncorrectable error in SRAM            | detail of Xid 48
173         | fence    | chip-to-chip link failed               | CPU and GPU are parted
174         | event    | a process was ended                    | the application's
175         | fence    | memory subsystem error                 | said in the place of Xid 119
176         | event    | PCIe error, corrected                  | data was right
"""


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _rules(table: str) -> Iterator[tuple[int, Rule]]:
    for line in table.strip().splitlines():
        numbers, policy, meaning, reason = (field.strip() for field in line.split("|"))
        for number in _numbers(numbers):
            yield number, Rule(Policy(policy), meaning, reason)


RULES: Mapping[int, Rule] = dict(_rules(_TABLE))


def rule(number: int) -> Rule:
    """Return the rule of an Xid; one that is not in the table is told as something to look at."""
    return RULES.get(number, UNKNOWN)
