/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_ELIMINATION_INTERNAL_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_ELIMINATION_INTERNAL_H

/*
 * What the parts of elimination.c share: cells of tuples, and the graph while it shrinks.
 *
 * Cells of tuples: what elimination.c keeps for each strategy of a node and each pair of an edge.
 *
 * A cell without lists has one tuple, whose score is INFINITY where nothing is possible. With lists
 * it has any number, by ascending score and descending memory.
 */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/autoparallel/search/elimination.h"

#define FRONT_MAX 512 /* tuples of a cell */

/* What a tuple was made of: the strategy of the node that went, and the places of the tuples in
 * their cells. Which is which, the rule says. */
struct cells_origin {
    uint16_t strategy, first, middle, last;
};

struct cells {
    int rows, columns;
    size_t *start;          /* [rows · columns + 1]; NULL: one tuple a cell */
    double *score, *memory; /* memory: NULL without lists */
    struct cells_origin *origin;
    size_t count, capacity;
};

/* A tuple that competes for a place in a cell. */
struct cells_candidate {
    double score, memory;
    struct cells_origin origin;
};

/* The cell that is being made, with what competes for it. */
struct cells_maker {
    struct cells *out;
    struct cells_candidate *candidates;
    size_t count, capacity;
    size_t cell;      /* cells that are complete */
    double limit;     /* of memory; tuples above it are dropped */
    bool keeps_lists; /* else only the best */
    bool was_cut;     /* a list was longer than FRONT_MAX */
};

/* Empty cells, to be filled one after the other by cells_close(). */
void cells_init(struct cells *cells, int rows, int columns, bool has_lists);
void cells_release(struct cells *cells);

static inline size_t cells_first(const struct cells *cells, size_t cell)
{
    return cells->start ? cells->start[cell] : cell;
}

static inline size_t cells_end(const struct cells *cells, size_t cell)
{
    return cells->start ? cells->start[cell + 1] : cell + 1;
}

/* The lowest score of a cell. */
static inline double cells_least(const struct cells *cells, size_t cell)
{
    size_t first = cells_first(cells, cell);

    return first < cells_end(cells, cell) ? cells->score[first] : INFINITY;
}

/* Let tuple `candidate` compete for the cell that is being made. */
void cells_offer(struct cells_maker *maker, const struct cells_candidate *candidate);

/* The cell is complete: keep the best, or those that need less memory than all cheaper ones. */
void cells_close(struct cells_maker *maker);

/* A copy with rows and columns exchanged; tuples keep their places. */
void cells_transpose(const struct cells *cells, struct cells *out);

/* Row i of *out is row from[i] of `cells`. */
void cells_pick_rows(const struct cells *cells, const int *from, int count, struct cells *out);

/* ---- the graph while it shrinks -------------------------------------------------------------- */

#define ELIMINATION_PAIRS_MAX 20000 /* of strategies of a star */
#define ELIMINATION_NO_EDGE   (-1)

struct work_node {
    int choices, cells;
    int *edges; /* that it has */
    int degree;
    bool is_gone;
};

struct work_edge {
    int a, b, cells; /* cells: rows a, columns b */
    bool is_gone;
};

enum work_rule {
    WORK_EDGE,
    WORK_OPERATOR,
    WORK_FOLD,
    WORK_STAR,
};

struct work_step {
    enum work_rule rule;
    int w;      /* the node that went */
    int u, v;   /* the nodes that were left; of an edge: its ends */
    int e1, e2; /* the edges that went: EDGE both, OPERATOR u–w and w–v, FOLD and STAR u–w */
    int made;   /* cells */
    int e;      /* EDGE, OPERATOR: the new edge */
    int *pairs_w, *pairs_u; /* STAR: the strategies of a new one */
};

struct work {
    const struct elimination_question *question;
    struct cells *pool;
    struct work_node *nodes;
    struct work_edge *edges;
    struct work_step *steps;
    int pool_count, node_count, edge_count, step_count;
    struct cells_maker maker;
    bool is_exact;
};

/* Cells into the pool; their index. Pointers into the pool end here. */
int work_add_cells(struct work *work, const struct cells *cells);

/* Begin to make cells with work->maker. */
void work_begin(struct work *work, struct cells *made, int rows, int columns);

/* Add an edge a–b over cells of rows a, columns b; joined to one that is there. */
void work_insert_edge(struct work *work, int a, int b, int cells);

int work_other_end(const struct work *work, int edge, int node);

/* The rules of elimination.h. Fold: over edge e, or over none. Star: w and u become u; false:
 * nothing is possible. */
void work_eliminate_operator(struct work *work, int w);
void work_fold(struct work *work, int w, int u, int e);
bool work_merge_star(struct work *work, int w, int u);

/* Undo all steps: the best strategies into choices, with node `last` left. false: none is
 * possible. */
bool work_recover(const struct work *work, int last, int *choices);

#endif
