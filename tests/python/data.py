# SPDX-License-Identifier: Apache-2.0
"""The examples of InMemoryDataset and QueueDataset of Paddle's pages, in two workers."""
import os
import tempfile

import fleet
import fleet_data

fleet.init_parallel_env()
rank = fleet.get_rank()
slots = ["slot1", "slot2", "slot3", "slot4"]
use_var = [(name, "int64", [-1, 1]) for name in slots]
sparse = [(name, "int64", [-1, -1]) for name in slots]

with tempfile.TemporaryDirectory() as folder:
    a, b = os.path.join(folder, "a.txt"), os.path.join(folder, "b.txt")
    with open(a, "w", encoding="utf-8") as file:
        file.write("1 1 2 3 3 4 5 5 5 5 1 1\n1 2 2 3 4 4 6 6 6 6 1 2\n1 3 2 3 5 4 7 7 7 7 1 3\n")
    with open(b, "w", encoding="utf-8") as file:
        file.write("1 4 2 3 3 4 5 5 5 5 1 4\n1 5 2 3 4 4 6 6 6 6 1 5\n")

    dataset = fleet_data.InMemoryDataset()
    dataset.init(batch_size=1, thread_num=2, pipe_command="cat", use_var=sparse, seed=7)
    dataset.set_filelist([a, b] if rank == 0 else [a])
    dataset.load_into_memory()
    assert dataset.get_memory_data_size() == (5 if rank == 0 else 3)
    assert dataset.get_memory_data_size(of_all=True) == 8
    first = next(iter(dataset))
    assert [list(first[name][0]) for name in slots] == [[1], [3, 3], [5, 5, 5, 5], [1]], first
    dataset.local_shuffle()
    dataset.slots_shuffle(["slot1"])
    dataset.global_shuffle()
    assert dataset.get_shuffle_data_size(of_all=True) == 8
    found = sorted(batch["slot4"][0][0] for batch in dataset)
    parts = []
    fleet.all_gather_object(parts, found)
    assert sorted(parts[0] + parts[1]) == [1, 1, 2, 2, 3, 3, 4, 5], parts
    dataset.release_memory()
    assert dataset.get_memory_data_size() == 0
    dataset.preload_into_memory()
    dataset.wait_preload_done()
    assert dataset.get_memory_data_size() > 0

    queue = fleet_data.QueueDataset()
    queue.init(batch_size=2, thread_num=1, pipe_command="sed 's/^1 1 /1 9 /'", use_var=sparse)
    queue.set_filelist([a, b])
    assert [len(batch["slot1"]) for batch in queue] == [2, 2, 1]
    assert next(iter(queue))["slot1"][0][0] == 9

    # A dense slot of another length, a line that ends early, a command that fails, a queue that is
    # to be shuffled, a type that does not exist.
    def refused(words, action):
        try:
            action()
        except fleet.FleetError as error:
            assert words in str(error), error
            return
        raise AssertionError(words)

    wrong = fleet_data.InMemoryDataset()
    wrong.init(use_var=use_var)
    wrong.set_filelist([a])
    refused("a.txt", wrong.load_into_memory)
    wrong.init(use_var=sparse, pipe_command="head -c 20")
    wrong.set_filelist([a])
    refused("a.txt", wrong.load_into_memory)
    wrong.init(use_var=sparse, pipe_command="cat; exit 3")
    wrong.set_filelist([a])
    refused("exit code 3", wrong.load_into_memory)
    refused("queue", queue.global_shuffle)
    refused("float16", lambda: wrong.init(use_var=[("x", "float16", [-1, 1])]))
    refused("no setting", lambda: wrong.init(use_var=sparse, fast=True))
    fleet.barrier()
