/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The membership protocol of a job, for spin: three members, and two leaders one after the other
 * with a hub each. It says with less what hub.c and member.c say: a member is one process, and
 * there is no clock.
 *
 *   hello, ready, heartbeat   each of them carries the whole status of a member (receive)
 *   start                     ASSIGN, which the hub repeats when a status does not fit
 *   accuse                    a member that has lost a peer says so in its status
 *   goodbye                   a status of a member that is leaving
 *
 * Faults come from budgets: messages that are lost, members that are lost and replaced, links
 * between two healthy members, healthy members that the hub takes for lost, writes that the API
 * server refuses, and a leader that is replaced while it still acts.
 *
 * Connections between the members of a generation are shared variables: a vote that was cast
 * arrives, also after its sender has left.
 *
 * Properties (rules: docs/decisions/safety-rules.md). The assertions name them:
 *
 *  (P1) Once a generation was told its members that goes on from step b, no older one with a
 *       member in common makes a step beyond b + 1; and b + 1 only if that member had voted for it
 *       before it left. It is the step that the newer one makes, too (rule 3).
 *  (P2) A member gets a generation only after the record, or the generation has a strict majority
 *       of the one before it (rule 2).
 *  (P3) Each cell is filled with the state of that cell, or nobody trains.
 *  (P4) Training goes on only from a state on the recorded lineage (rule 6).
 *  (P5) No member gives up a step of the lineage that it holds.
 *  (P6) A member obeys only a greater generation (rule 1).
 *  (P7) A hub that has learnt of a greater epoch gives no order (rule 1). Members that know the
 *       greater one obey no order of it anyway.
 *  (P8) Restarts that count are at most as many as failures; a goodbye is none.
 *  (P9) One failure evicts no member (rule 7).
 *  (P10) Each history ends with a finished job: a lost message, member or leader is no hang.
 *
 * What the code does by time, heartbeats and the end of a hub's patience, comes here when nothing
 * else can happen. A history in which that is so too often is a hang. Budgets (REPEATS, HURRIES)
 * let a few of them come at any moment.
 *
 * Not here: resizes, checkpoints, several processes of a member, own trainers.
 *
 * check.sh runs the configurations, and breaks the properties with the errors that BREAK numbers.
 */

/* Settings come from the environment, so one compiled checker serves all configurations. */
c_decl {
    static int setting(const char *name, int otherwise)
    {
        const char *text = getenv(name);
        return text ? atoi(text) : otherwise;
    }
}

#define MEMBERS  3
#define COUNTERS 8 /* a hub makes fewer generations than this; generation = epoch · 8 + counter */
#define NONE     0
#define LEADERS  2
#define NO_HUB   LEADERS
#define BEATS    24 /* a history in which nothing else can happen so often is a hang */

#define bit_of(m)     (1 << (m))
#define has(set, m)   (((set) >> (m)) & 1)
#define without(set, m) ((set) & (7 - bit_of(m)))
#define size_of(set)  (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))

/* What BREAK may be. */
#define BREAK_LEAVE   1
#define BREAK_RECORD  2
#define BREAK_VOTE    3
#define BREAK_LINEAGE 4
#define BREAK_NEWEST  5
#define BREAK_OBEY    6
#define BREAK_EPOCH   7
#define BREAK_COUNT   8
#define BREAK_ACCUSE  9
#define BREAK_REPEAT  10
#define BREAK_CELLS   11

mtype = { ASSIGN, ABORT, LEAVE };
mtype = { WAITING, RUNNING };
mtype = { GATHERING, RECORDING, WHOLE };

typedef Generation {
    byte members, first; /* a set; the member with cell 0, the other one has cell 1 */
    byte base, done;     /* the step it goes on from; the last one with all votes */
    byte votes;          /* for step done + 1: a set */
    bit recorded, told, majority;
};
Generation gen[LEADERS * COUNTERS];

typedef Member {
    mtype state;
    byte obeyed;
    byte made, step, cell; /* the state it holds: generation, step (0 = none), its part */
    bit restored, voted;   /* in `obeyed`; for step + 1 of `made` */
    byte hub;              /* its connection */
    bit to_say, is_new;    /* a status is on its way; it will be the first on its connection */
    byte accused;          /* the peer that it lost + 1, 0 = none to report */
    bit leaving;           /* its goodbye is on its way */
    mtype mail;            /* on its way to it, 0 = nothing; and of which generation */
    byte about;
};
Member member[MEMBERS];

typedef View { /* of a member, by a hub */
    bit connected;
    mtype state;
    byte obeyed, made, step, cell;
};
typedef Hub {
    bit began, alive, superseded, impatient;
    mtype phase;
    byte newest, placed, unheard; /* generation; its members: here or gone; not heard from yet */
    bit broken;
    byte proposed, counter, live;
    bit failure, explained;       /* of the open incident: counts; a member was seen to fail */
    byte accuser, accused;        /* its first accusation: members + 1 */
    View view[MEMBERS];
};
Hub hub[LEADERS];

byte leader, recorded, restarts; /* the Lease; the status */
byte accusations[8];             /* by pair, a set; kept by the hub */
bit over;

/* The settings: of the job, the property to break, and the budgets of faults. */
byte CELLS;  /* ranks that share a model: 1, or 2 as in a generation of two members */
byte LEAST;  /* members of the smallest generation */
byte STEPS;  /* of the job */
byte breaks; /* 0 = nothing */
byte losses, crashes, suspicions, links, goodbyes, outages, elections, moves;
byte repeats; /* messages that come twice, heartbeats that come early */
byte hurries; /* ends of patience that come early */
byte calm;    /* generations that are recorded before the first fault */
byte failures, broken_links; /* that happened */
byte beats;                  /* how often nothing else could happen */


byte late[MEMBERS];          /* BREAK_LEAVE: a generation that it left and still votes in */

/* Scratch, never kept from one event to the next. */
byte who, drops; /* of the event at work */
hidden byte i, k, q, g, other, base, best, first, chosen, ready, set;
hidden byte obeyed, made, step, cell, accused;
hidden byte is_new, holds, fits;
hidden mtype word, state;

byte property; /* the one that is broken; 0 */

#define may_fail (recorded >= calm)

/* A property by its number; check.sh reads which one it was. */
inline claim(number, condition) {
    if
    :: condition
    :: else ->
        property = number;
        c_code { printf("property P%d is broken\n", now.property); };
        assert(property == 0)
    fi
}

/* ---- messages -------------------------------------------------------------------------------- */

inline flush(m) {
    member[m].mail = 0;
    member[m].about = 0;
    member[m].to_say = 0
}

#define say(m) member[m].to_say = 1

/* One order at a time is on its way; a further one is lost, and repeated after a heartbeat. */
inline order(h, m, what, generation) {
    claim(7, !hub[h].superseded);
    if
    :: drops == m + 1 -> losses--; drops = 0
    :: drops != m + 1 && member[m].hub == h && !member[m].is_new && member[m].mail == 0 ->
        member[m].mail = what;
        member[m].about = generation
    :: else
    fi
}

/* Before an event of a hub: the order to one member may be lost. */
inline may_drop() {
    if
    :: drops = 0
    :: losses > 0 -> drops = 1
    :: losses > 0 -> drops = 2
    :: losses > 0 -> drops = 3
    fi
}

/* A new pod of its index. */
inline replace(m) {
    printf("member %d is replaced\n", m);
    flush(m);
    member[m].state = WAITING;
    member[m].obeyed = NONE;
    member[m].made = NONE;
    member[m].step = 0;
    member[m].cell = 0;
    member[m].restored = 0;
    member[m].voted = 0;
    member[m].hub = NO_HUB;
    member[m].is_new = 0;
    member[m].accused = 0;
    member[m].leaving = 0;
    late[m] = NONE
}

/* ---- a hub ----------------------------------------------------------------------------------- */

#define is_candidate(h, m)                                                                         \
    (hub[h].view[m].connected && hub[h].view[m].state == WAITING &&                                \
     (!has(hub[h].placed, m) || hub[h].view[m].obeyed >= hub[h].newest))
#define leaves(h, m) \
    (has(hub[h].placed, m) && hub[h].view[m].connected && !is_candidate(h, m))
#define count_candidates(h) (is_candidate(h, 0) + is_candidate(h, 1) + is_candidate(h, 2))

/* May it propose a generation? */
#define may_form(h)                                                                                \
    (hub[h].phase == GATHERING && count_candidates(h) >= LEAST && !leaves(h, 0) &&                 \
     !leaves(h, 1) && !leaves(h, 2) && (count_candidates(h) == MEMBERS || hub[h].impatient) &&     \
     (hub[h].unheard == 0 || hub[h].impatient))

inline break_generation(h, fails) {
    hub[h].failure = hub[h].failure | (fails);
    restarts = restarts + (breaks == BREAK_COUNT && (fails));
    if
    :: hub[h].phase != GATHERING || !hub[h].broken ->
        hub[h].phase = GATHERING;
        hub[h].broken = 1;
        k = 0;
        do
        :: k < MEMBERS ->
            if
            :: has(hub[h].placed, k) && hub[h].view[k].connected ->
                order(h, k, ABORT, hub[h].newest)
            :: else
            fi;
            k++
        :: else -> break
        od
    :: else
    fi
}

/* The member no longer counts. */
inline lose(h, m, fails) {
    printf("hub %d loses member %d\n", h, m);
    hub[h].view[m].connected = 0;
    hub[h].view[m].state = WAITING;
    hub[h].view[m].obeyed = NONE;
    hub[h].view[m].made = NONE;
    hub[h].view[m].step = 0;
    hub[h].view[m].cell = 0;
    if
    :: hub[h].phase == RECORDING && has(gen[hub[h].proposed].members, m) ->
        hub[h].phase = GATHERING
    :: else
    fi;
    if
    :: has(hub[h].placed, m) ->
        hub[h].placed = without(hub[h].placed, m);
        hub[h].explained = 1;
        break_generation(h, fails)
    :: else
    fi
}

/* An earlier hub made this one and could not record it. */
inline learn(h, generation) {
    hub[h].newest = generation;
    hub[h].placed = 0;
    hub[h].unheard = gen[generation].members;
    hub[h].broken = 0;
    hub[h].phase = GATHERING;
    if
    :: leader == h && recorded < generation ->
        recorded = generation;
        gen[generation].recorded = 1
    :: else
    fi
}

inline take_status(h, m) {
    hub[h].view[m].connected = 1;
    hub[h].view[m].state = state;
    hub[h].view[m].obeyed = obeyed;
    hub[h].view[m].made = made;
    hub[h].view[m].step = step;
    hub[h].view[m].cell = cell;
    if
    :: made > hub[h].live && step > gen[made].base -> hub[h].live = made
    :: else
    fi;
    if
    :: obeyed == hub[h].newest && has(hub[h].unheard, m) ->
        hub[h].unheard = without(hub[h].unheard, m);
        hub[h].placed = hub[h].placed | bit_of(m);
        if
        :: hub[h].phase == GATHERING && !hub[h].broken && state == RUNNING ->
            hub[h].phase = WHOLE
        :: else
        fi
    :: else
    fi;
    if
    :: accused > 0 && hub[h].accuser == 0 && obeyed == hub[h].newest && has(hub[h].placed, m) ->
        hub[h].accuser = m + 1;
        hub[h].accused = accused
    :: else
    fi
}

/* A member in the wrong generation gets the right one, again if needed. */
inline correct(h, m) {
    if
    :: has(hub[h].placed, m) && hub[h].phase == WHOLE ->
        if
        :: obeyed == hub[h].newest && state == RUNNING
        :: obeyed == hub[h].newest && state == WAITING -> break_generation(h, 1)
        :: obeyed != hub[h].newest && hub[h].proposed == hub[h].newest && breaks != BREAK_REPEAT ->
            order(h, m, ASSIGN, hub[h].newest)
        :: else
        fi
    :: has(hub[h].placed, m) && hub[h].phase != WHOLE ->
        if
        :: obeyed == hub[h].newest && state == WAITING && !hub[h].broken -> break_generation(h, 1)
        :: hub[h].broken && (state == RUNNING || obeyed != hub[h].newest) ->
            order(h, m, ABORT, hub[h].newest)
        :: else
        fi
    :: !has(hub[h].placed, m) && state == RUNNING -> order(h, m, ABORT, obeyed)
    :: else
    fi
}

/* Does the member hold a state that counts: not older than the newest that was trained, and on the
 * lineage, where no recorded generation began from an earlier step since? */
inline look_at(h, m) {
    holds = hub[h].view[m].step > 0 && hub[h].view[m].made >= hub[h].live;
    q = hub[h].view[m].made + 1;
    do
    :: q <= hub[h].newest ->
        holds = holds && !(gen[q].recorded && gen[q].base < hub[h].view[m].step);
        q++
    :: else -> break
    od;
    holds = holds || (breaks == BREAK_LINEAGE && hub[h].view[m].step > 0)
}

/* A status is on its way. What it says is as new as its arrival: a newer one overtakes it. */
inline receive(h, m) {
    obeyed = member[m].obeyed;
    state = member[m].state;
    made = member[m].made;
    step = member[m].step;
    cell = member[m].cell;
    accused = member[m].accused;
    is_new = member[m].is_new;
    printf("hub %d hears member %d: %d of %d, step %d of %d, drops %d\n", h, m, state, obeyed, step,
        made, drops);
    member[m].to_say = 0;
    member[m].accused = 0;
    if
    :: drops == 4 -> losses--
    :: drops != 4 && member[m].leaving -> lose(h, m, 0); replace(m)
    :: drops != 4 && !member[m].leaving && obeyed / COUNTERS > h -> hub[h].superseded = 1
    :: drops != 4 && !member[m].leaving && obeyed / COUNTERS <= h ->
        member[m].is_new = 0;
        if /* a new pod: the one before it is gone */
        :: is_new && obeyed == NONE && (hub[h].view[m].obeyed != NONE || has(hub[h].placed, m)) ->
            lose(h, m, 1)
        :: else
        fi;
        if
        :: obeyed > hub[h].newest -> learn(h, obeyed)
        :: else
        fi;
        over = over | (step == STEPS && obeyed == hub[h].newest);
        take_status(h, m);
        correct(h, m);
        look_at(h, m);
        if /* it holds a newer state than those that were chosen */
        :: hub[h].phase == RECORDING && CELLS == 1 && holds && is_candidate(h, m) &&
           hub[h].view[m].step > gen[hub[h].proposed].base ->
            hub[h].phase = GATHERING
        /* an error: it goes back for a state that a generation has left behind */
        :: breaks == BREAK_LINEAGE && hub[h].phase == WHOLE && holds && is_candidate(h, m) &&
           hub[h].view[m].step > gen[hub[h].newest].base ->
            break_generation(h, 0)
        :: else
        fi
    fi
}

/* One accusation evicts no member; a second by the same pair evicts the accused. */
inline judge(h) {
    if
    :: hub[h].accuser > 0 && !hub[h].explained ->
        set = bit_of(hub[h].accuser - 1) | bit_of(hub[h].accused - 1);
        accusations[set]++;
        if
        :: accusations[set] >= (breaks == BREAK_ACCUSE -> 1 : 2) ->
            claim(9, broken_links >= 2);
            accusations[set] = 0;
            other = hub[h].accused - 1;
            order(h, other, LEAVE, hub[h].newest);
            lose(h, other, 0)
        :: else
        fi
    :: else
    fi;
    hub[h].accuser = 0;
    hub[h].accused = 0
}

/* From `chosen`: base, and with cells `first`. */
inline choose_base(h) {
    base = 0;
    best = NONE;
    i = 0;
    do
    :: i < MEMBERS ->
        look_at(h, i);
        if
        :: has(chosen, i) && holds && hub[h].view[i].step > base && breaks != BREAK_NEWEST ->
            base = hub[h].view[i].step;
            best = hub[h].view[i].made
        :: else
        fi;
        i++
    :: else -> break
    od;
    first = MEMBERS;
    set = 0;
    i = 0;
    do
    :: i < MEMBERS && CELLS == 2 ->
        look_at(h, i);
        if /* who has voted for `base` in that generation can make it alone */
        :: has(chosen, i) && holds && hub[h].view[i].step + 1 >= base &&
           hub[h].view[i].made == best ->
            set = set | bit_of(hub[h].view[i].cell);
            if
            :: hub[h].view[i].cell == 0 -> first = i
            :: else
            fi
        :: else
        fi;
        i++
    :: else -> break
    od;
    if
    :: CELLS == 2 && set != 3 && breaks != BREAK_CELLS ->
        base = 0;
        first = MEMBERS
    :: else
    fi;
    if
    :: first == MEMBERS -> first = (has(chosen, 0) -> 0 : 1)
    :: else
    fi
}

/* All candidates; with cells two of them, that hold the whole state if any two do. */
inline choose(h) {
    ready = is_candidate(h, 0) | (is_candidate(h, 1) << 1) | (is_candidate(h, 2) << 2);
    chosen = ready;
    if
    :: CELLS == 2 && size_of(ready) == 3 ->
        other = 0;
        chosen = 3;
        do
        :: other < MEMBERS ->
            chosen = without(7, other);
            choose_base(h);
            if
            :: base > 0 || other == MEMBERS - 1 -> break
            :: else -> other++
            fi
        :: else -> break
        od
    :: else -> choose_base(h)
    fi
}

inline propose(h) {
    judge(h);
    if
    :: may_form(h) -> /* a member may just have been evicted */
        if
        :: hub[h].unheard != 0 && gen[hub[h].newest].done > gen[hub[h].newest].base ->
            hub[h].failure = 1 /* it trained, and some of its members never came */
        :: else
        fi;
        choose(h);
        hub[h].counter++;
        assert(hub[h].counter < COUNTERS);
        g = h * COUNTERS + hub[h].counter;
        gen[g].members = chosen;
        gen[g].first = first;
        gen[g].base = base;
        gen[g].done = base;
        gen[g].majority =
            2 * size_of(chosen & gen[hub[h].newest].members) > size_of(gen[hub[h].newest].members);
        hub[h].proposed = g;
        printf("hub %d proposes %d: members %d from step %d\n", h, g, chosen, base);
        hub[h].phase = RECORDING
    :: else
    fi
}

#define outdated(h, m) (has(gen[hub[h].proposed].members, m) && !is_candidate(h, m))
#define is_outdated(h) (outdated(h, 0) || outdated(h, 1) || outdated(h, 2))

inline record(h) {
    g = hub[h].proposed;
    i = 0;
    do
    :: i < MEMBERS ->
        look_at(h, i);
        fits = has(gen[g].members, i) && holds && gen[g].base == hub[h].view[i].step;
        q = hub[h].view[i].made + 1;
        do
        :: q < g -> /* it trained, and so left that state behind */
            claim(4, !(fits && gen[q].recorded && gen[q].done > gen[q].base &&
                       gen[q].base < gen[g].base));
            q++
        :: else -> break
        od;
        i++
    :: else -> break
    od;
    recorded = g;
    gen[g].recorded = 1;
    restarts = restarts + (breaks != BREAK_COUNT && hub[h].failure);
    hub[h].failure = 0;
    claim(8, restarts <= failures)
}

inline assign(h) {
    g = hub[h].proposed;
    printf("hub %d assigns %d, drops %d\n", h, g, drops);
    gen[g].told = 1;
    hub[h].newest = g;
    hub[h].placed = gen[g].members;
    hub[h].unheard = 0;
    hub[h].broken = 0;
    hub[h].phase = WHOLE;
    hub[h].failure = 0;
    hub[h].explained = 0;
    hub[h].impatient = 0;
    k = 0;
    do
    :: k < MEMBERS ->
        if
        :: has(gen[g].members, k) -> order(h, k, ASSIGN, g)
        :: else
        fi;
        k++
    :: else -> break
    od
}

#define is_recorded(h) (gen[hub[h].proposed].recorded || gen[hub[h].proposed].told)
#define may_assign(h) (is_recorded(h) || breaks == BREAK_RECORD)

#define has_mail(h, m) (member[m].hub == h && member[m].to_say)
#define is_here(h, m)  (hub[h].view[m].connected && member[m].hub == h)
#define is_gone(h, m)  (hub[h].view[m].connected && member[m].hub != h)

/* Processes end one after the other, so that the end makes no histories. */
#define is_last (_nr_pr == _pid + 1)
#define has_stopped(h) (hub[h].superseded && breaks != BREAK_EPOCH)
#define acts(h)        (!over && hub[h].alive && !has_stopped(h))
#define end_event who = 0; drops = 0

proctype HubProcess(byte h) {
    do
    :: over && is_last -> break
    :: d_step { !over && leader == h && !hub[h].began ->
        hub[h].alive = 1;
        hub[h].began = 1;
        hub[h].newest = recorded;
        hub[h].unheard = gen[recorded].members;
        hub[h].broken = (recorded == NONE);
        hub[h].phase = GATHERING }
    :: atomic { acts(h) && (has_mail(h, 0) || has_mail(h, 1) || has_mail(h, 2)) ->
        if
        :: has_mail(h, 0) -> who = 0
        :: has_mail(h, 1) -> who = 1
        :: has_mail(h, 2) -> who = 2
        fi;
        if
        :: losses > 0 && !member[who].is_new -> drops = 4
        :: true -> may_drop()
        fi;
        d_step { receive(h, who); end_event } }
    /* A connection has ended, and its member is not back. */
    :: atomic { acts(h) && (is_gone(h, 0) || is_gone(h, 1) || is_gone(h, 2)) ->
        if
        :: is_gone(h, 0) -> who = 0
        :: is_gone(h, 1) -> who = 1
        :: is_gone(h, 2) -> who = 2
        fi;
        may_drop();
        d_step { lose(h, who, 1); end_event } }
    /* A new hub runs out of patience with members of a generation that runs. */
    :: atomic { acts(h) && hub[h].phase == WHOLE && hub[h].unheard != 0 && hub[h].impatient ->
        may_drop();
        d_step {
            hub[h].unheard = 0;
            hub[h].explained = 1;
            break_generation(h, 1);
            end_event
        } }
    :: atomic { acts(h) && may_form(h) -> may_drop(); d_step { propose(h); end_event } }
    :: acts(h) && hub[h].phase == RECORDING && is_outdated(h) -> hub[h].phase = GATHERING
    :: d_step { acts(h) && hub[h].phase == RECORDING && !is_outdated(h) &&
        !is_recorded(h) && leader == h ->
        record(h) }
    /* The write fails: a majority goes on without it. */
    :: d_step { acts(h) && hub[h].phase == RECORDING && !is_outdated(h) && !is_recorded(h) &&
        gen[hub[h].proposed].majority && (leader != h || outages > 0) ->
        outages = outages - (leader == h -> 1 : 0);
        gen[hub[h].proposed].told = 1 }
    :: atomic { acts(h) && hub[h].phase == RECORDING && !is_outdated(h) && may_assign(h) ->
        may_drop();
        d_step { assign(h); end_event } }
    :: d_step { acts(h) && may_fail && hurries > 0 && !hub[h].impatient &&
        (hub[h].phase == GATHERING || hub[h].unheard != 0) ->
        hurries--;
        hub[h].impatient = 1 }
    /* It takes a healthy member for lost, and closes its connection. */
    :: atomic { acts(h) && may_fail && suspicions > 0 && (is_here(h, 0) || is_here(h, 1) || is_here(h, 2)) ->
        if
        :: is_here(h, 0) -> who = 0
        :: is_here(h, 1) -> who = 1
        :: is_here(h, 2) -> who = 2
        fi;
        d_step {
            suspicions--;
            failures++;
            member[who].hub = NO_HUB;
            flush(who);
            lose(h, who, 1);
            end_event
        } }
    /* It notices that it leads no more; until then it acts. */
    :: !over && hub[h].alive && (leader != h || has_stopped(h)) -> hub[h].alive = 0
    od
}

/* ---- a member -------------------------------------------------------------------------------- */

#define ME      member[me]
#define MINE    gen[member[me].obeyed]
#define trains  (ME.state == RUNNING && !ME.leaving)
#define has_left(k)                                                                                \
    (has(MINE.members, k) && (member[k].obeyed > ME.obeyed ||                                      \
     (member[k].obeyed == ME.obeyed && member[k].state == WAITING) ||                              \
     (ME.restored && member[k].obeyed < ME.obeyed)))
#define is_there(k)                                                                                \
    (!has(MINE.members, k) || (member[k].obeyed == ME.obeyed && member[k].state == RUNNING))
#define everyone_is_there (is_there(0) && is_there(1) && is_there(2))
#define is_peer(k)                                                                                 \
    ((k) != me && has(MINE.members, k) && member[k].obeyed == ME.obeyed &&                         \
     member[k].state == RUNNING && member[k].restored)

inline connect(me, h) {
    flush(me);
    ME.hub = h;
    ME.is_new = 1;
    ME.accused = 0;
    say(me)
}

inline disconnect(me) {
    flush(me);
    ME.hub = NO_HUB;
    if
    :: ME.leaving -> failures++; replace(me) /* nobody got its goodbye */
    :: else
    fi
}

inline leave_generation(me) {
    if
    :: breaks == BREAK_LEAVE && ME.state == RUNNING && ME.restored ->
        late[me] = ME.obeyed
    :: else
    fi;
    ME.state = WAITING
}

/* (P5) is about states that no generation since has left behind. */
inline check_step(me) {
    fits = ME.step > gen[g].base && CELLS == 1;
    q = ME.made + 1;
    do
    :: q < g ->
        fits = fits && !((gen[q].recorded || gen[q].told) && gen[q].base < ME.step);
        q++
    :: else -> break
    od;
    claim(5, !fits)
}

inline obey(me) {
    printf("member %d gets %d of %d\n", me, ME.mail, ME.about);
    word = ME.mail;
    g = ME.about;
    ME.mail = 0;
    ME.about = 0;
    if
    :: word == ASSIGN && (g > ME.obeyed || breaks == BREAK_OBEY) ->
        claim(2, gen[g].recorded || gen[g].majority);
        claim(6, g > ME.obeyed);
        check_step(me);
        leave_generation(me);
        ME.obeyed = g;
        ME.state = RUNNING;
        ME.restored = 0;
        ME.accused = 0;
        say(me)
    :: word == ABORT && g >= ME.obeyed && (g > ME.obeyed || ME.state == RUNNING) ->
        leave_generation(me);
        ME.obeyed = g;
        say(me)
    :: word == LEAVE -> replace(me)
    :: else
    fi
}

/* All are connected: each has the state that they go on from. */
inline restore(me) {
    if
    :: CELLS == 2 && MINE.base > 0 -> /* nobody else holds its part */
        claim(3, ME.cell == (MINE.first == me -> 0 : 1));
        claim(3, ME.step == MINE.base || (ME.step + 1 == MINE.base && ME.voted))
    :: else
    fi;
    ME.cell = (CELLS == 1 || MINE.first == me -> 0 : 1);
    printf("member %d restores step %d of %d\n", me, MINE.base, ME.obeyed);
    ME.step = MINE.base;
    ME.made = ME.obeyed;
    ME.voted = 0;
    ME.restored = 1
}

#define has_all_votes(g)                                                                           \
    (size_of(gen[g].votes) + (breaks == BREAK_VOTE -> 1 : 0) >= size_of(gen[g].members))

inline cast_vote(me, generation) {
    gen[generation].votes = gen[generation].votes | bit_of(me);
    if
    :: has_all_votes(generation) ->
        claim(3, gen[generation].votes == gen[generation].members);
        claim(3, CELLS == 1 || size_of(gen[generation].members) == CELLS);
        q = generation + 1;
        do
        :: q < LEADERS * COUNTERS ->
            claim(1, (gen[q].members & gen[generation].members) == 0 || !gen[q].told ||
                     gen[generation].done <= gen[q].base);
            q++
        :: else -> break
        od;
        gen[generation].done++;
        gen[generation].votes = 0
    :: else
    fi
}

/* It finds a peer gone. */
inline lose_peer(me, k) {
    printf("member %d has lost %d\n", me, k);
    leave_generation(me);
    ME.accused = k + 1;
    say(me)
}

proctype MemberProcess(byte me) {
    do
    :: over && is_last -> break
    :: d_step { !over && ME.hub == NO_HUB && hub[1].alive -> connect(me, 1) }
    :: d_step { !over && ME.hub == NO_HUB && hub[0].alive -> connect(me, 0) }
    :: d_step { !over && ME.hub != NO_HUB && !hub[ME.hub].alive -> disconnect(me) }
    /* The hub does not answer. */
    :: d_step { !over && may_fail && moves > 0 && ME.hub != NO_HUB && ME.hub != leader ->
        moves--;
        disconnect(me) }
    :: d_step { !over && ME.mail != 0 && !ME.leaving -> obey(me) }
    /* The network repeats it. */
    :: d_step { !over && repeats > 0 && ME.mail != 0 && !ME.leaving ->
        repeats--;
        obey(me);
        ME.mail = word;
        ME.about = g }
    :: d_step { !over && trains && !ME.restored && everyone_is_there -> restore(me) }
    :: d_step { !over && trains && ME.restored && ME.step == MINE.done && !has(MINE.votes, me) &&
        MINE.done < STEPS ->
        ME.voted = 1;
        cast_vote(me, ME.obeyed) }
    :: d_step { !over && trains && ME.restored && ME.step < MINE.done ->
        ME.step = MINE.done;
        ME.voted = 0;
        printf("member %d has made step %d of %d\n", me, ME.step, ME.obeyed);
        say(me) }
    :: d_step { !over && trains && has_left(0) -> lose_peer(me, 0) }
    :: d_step { !over && trains && has_left(1) -> lose_peer(me, 1) }
    :: d_step { !over && trains && has_left(2) -> lose_peer(me, 2) }
    :: d_step { !over && late[me] != NONE && !has(gen[late[me]].votes, me) &&
        gen[late[me]].done < STEPS -> cast_vote(me, late[me]) }
    /* Faults. */
    :: d_step { !over && may_fail && crashes > 0 -> crashes--; failures++; replace(me) }
    :: atomic { !over && links > 0 && trains && ME.restored &&
        (is_peer(0) || is_peer(1) || is_peer(2)) ->
        if
        :: is_peer(0) -> who = 0
        :: is_peer(1) -> who = 1
        :: is_peer(2) -> who = 2
        fi;
        d_step {
            links--;
            broken_links++;
            failures++;
            lose_peer(me, who);
            end_event
        } }
    :: d_step { !over && repeats > 0 && ME.hub != NO_HUB && !ME.leaving && !ME.to_say ->
        repeats--;
        say(me) }
    :: d_step { !over && goodbyes > 0 && ME.hub != NO_HUB && !ME.is_new && !ME.leaving ->
        goodbyes--; /* it leaves its generation once this was sent */
        ME.leaving = 1;
        say(me) }
    /* Its goodbye was lost. */
    :: d_step { !over && ME.leaving && !ME.to_say -> failures++; replace(me) }
    od
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* The Lease goes to the next one at any time. */
proctype Lease() {
    do
    :: over && is_last -> break
    :: atomic { !over && may_fail && elections > 0 -> leader = 1; failures++; elections-- }
    od
}

/* Nothing else can happen: all heartbeats come, then the hubs' patience ends. */
proctype Clock() {
    do
    :: over && is_last -> break
    :: timeout -> d_step {
        beats++;
        claim(10, beats < BEATS);
        i = 0;
        do
        :: (beats & 1) && i < MEMBERS ->
            if
            :: member[i].hub != NO_HUB -> say(i)
            :: else
            fi;
            i++
        :: !(beats & 1) && i < LEADERS ->
            hub[i].impatient = hub[i].alive;
            i++
        :: else -> break
        od }
    od
}

init {
    atomic {
        hub[0].began = 1;
        hub[0].alive = 1;
        hub[0].broken = 1;
        hub[0].phase = GATHERING;
        c_code {
            now.CELLS = setting("CELLS", 1);
            now.LEAST = setting("LEAST", 2);
            now.STEPS = setting("STEPS", 2);
            now.breaks = setting("BREAK", 0);
            now.losses = setting("LOSSES", 0);
            now.crashes = setting("CRASHES", 0);
            now.suspicions = setting("SUSPICIONS", 0);
            now.links = setting("LINKS", 0);
            now.goodbyes = setting("GOODBYES", 0);
            now.outages = setting("OUTAGES", 0);
            now.elections = setting("ELECTIONS", 0);
            now.moves = setting("MOVES", 0);
            now.repeats = setting("REPEATS", 0);
            now.hurries = setting("HURRIES", 0);
            now.calm = setting("CALM", 0);
        };
        i = 0;
        do
        :: i < MEMBERS ->
            member[i].state = WAITING;
            member[i].hub = 0; /* all are there, and have said hello */
            hub[0].view[i].connected = 1;
            hub[0].view[i].state = WAITING;
            i++
        :: else -> break
        od;
        run MemberProcess(0);
        run MemberProcess(1);
        run MemberProcess(2);
        run HubProcess(0);
        run HubProcess(1);
        run Lease();
        run Clock()
    }
}
