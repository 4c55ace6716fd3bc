# SPDX-License-Identifier: Apache-2.0
"""The batches, and the weights and losses that training must end with: a linear model, the mean of
squared errors, Adam. Computed without a framework, in double precision."""

STEPS, BATCH, WIDTH = 40, 16, 8
RATE, BETA1, BETA2, EPSILON = 0.05, 0.9, 0.999, 1e-8


def batch(step):
    rows = [[((step * BATCH + row) * (column + 3) % 17) / 17 - 0.5 for column in range(WIDTH)]
            for row in range(BATCH)]
    return rows, [[sum(row[:3])] for row in rows]


def error(parameters, row, target):
    return sum(w * x for w, x in zip(parameters, row)) + parameters[-1] - target[0]


def train(world):
    """The weights after all steps, and the losses of rank 0, by step: it sees every world-th row.
    """
    parameters = [1.0] * WIDTH + [0.0]
    first, second, losses = [0.0] * (WIDTH + 1), [0.0] * (WIDTH + 1), {}
    for step in range(1, STEPS + 1):
        rows, targets = batch(step)
        errors = [error(parameters, row, target) for row, target in zip(rows, targets)]
        losses[step] = sum(e * e for e in errors[::world]) / len(errors[::world])
        for i in range(WIDTH + 1):
            g = sum(2 * e * (row[i] if i < WIDTH else 1) for e, row in zip(errors, rows)) / BATCH
            first[i] = BETA1 * first[i] + (1 - BETA1) * g
            second[i] = BETA2 * second[i] + (1 - BETA2) * g * g
            parameters[i] -= RATE * (first[i] / (1 - BETA1 ** step)) / (
                (second[i] / (1 - BETA2 ** step)) ** 0.5 + EPSILON)
    return parameters[:WIDTH], losses
