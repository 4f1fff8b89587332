"""Times torch.distributed's all_reduce over Gloo (TCP on loopback): the median of a call at rank 0 for each size, as JSON.

usage: gloo_all_reduce.py PROCESSES BYTES...
"""
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def member(rank, processes, sizes, meeting):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    rows = []
    for size in sizes:
        data = torch.zeros(size // 4, dtype=torch.float32)
        repeats = min(max((256 << 20) // size, 8), 200)
        seconds = []
        for i in range(-3, repeats):
            if i == 0:
                cpu = time.process_time()
            start = time.perf_counter()
            dist.all_reduce(data)
            if i >= 0:
                seconds.append(time.perf_counter() - start)
        cpu = (time.process_time() - cpu) / repeats
        rows.append({"bytes": size, "time_us": statistics.median(seconds) * 1e6, "cpu_us": cpu * 1e6})
    dist.barrier()
    if rank == 0:
        print(json.dumps({"rows": rows}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    count, sizes = int(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(member, args=(count, sizes, os.path.join(folder, "meeting")), nprocs=count)
