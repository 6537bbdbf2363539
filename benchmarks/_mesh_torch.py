"""The programs of `mesh.py` in PyTorch: a transformer on 2 ranks, by `Sharded` and by torch's own functions over gloo.

4 blocks of width 256, 1,024 words, rows of 32 words, 8 rows a step, Adam; one thread a rank, as torchrun sets it.
"""

COMMON = """
import json, os, sys, tempfile, time
os.environ["OMP_NUM_THREADS"] = "1"
STEPS, WIDTH, HEAD, WORDS, LENGTH, ROWS = max(3, int(sys.argv[1]) // 4), 256, 32, 1024, 32, 8
COLUMNS, LINES = ("q", "k", "v", "up"), ("o", "down")
def build():
    import torch
    from torch import nn
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        def forward(self, x):
            seen = self.before(x)
            q, k, v = (f(seen).view(*x.shape[:2], -1, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
            x = x + self.o(((q @ k.transpose(-1, -2) / HEAD ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
            return x + self.down(torch.relu(self.up(self.after(x))))
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Block() for _ in range(4)))
            self.out = nn.Linear(WIDTH, WORDS)
        def forward(self, x):
            return self.out(self.blocks(self.words(x)))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Model()
def rate(model, rows):
    import torch
    import torch.distributed as dist
    words = torch.randint(0, WORDS, (rows, LENGTH + 1))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    def step():
        loss = torch.nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for _ in range(2): step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(STEPS): step()
    dist.barrier()
    return STEPS / (time.perf_counter() - start)
"""

OURS = """
from hocket import train
from hocket.train.strategies import Sharded
from hocket.train.torch import TorchTrainer, prepare_model
PLAN = {rf".*\\.({'|'.join(COLUMNS)})\\.weight": ["model", "unsharded"],
        rf".*\\.({'|'.join(COLUMNS)})\\.bias": ["model"],
        rf".*\\.({'|'.join(LINES)})\\.weight": ["unsharded", "model"]}
def loop(config):
    return rate(prepare_model(build()), config["rows"])
def measure(strategy, rows):
    return TorchTrainer(
        loop, train_loop_config={"rows": rows}, strategy=strategy, scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit().return_value
print(json.dumps([measure(Sharded(mesh={"data": 2}, shard_along="data"), ROWS // 2),
                  measure(Sharded(mesh={"model": 2}, layout=PLAN), ROWS)]))
"""

GLOO = """
path = tempfile.mktemp()
rank = 0 if os.fork() else 1  # before torch is loaded
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
grid = init_device_mesh("cpu", (2,))
model = build()
for block in model.blocks: fully_shard(block, mesh=grid)
fully_shard(model, mesh=grid)
found = [rate(model, ROWS // 2)]
model = build()
plan = {**{name: ColwiseParallel() for name in COLUMNS}, **{name: RowwiseParallel() for name in LINES}}
for block in model.blocks: parallelize_module(block, grid, plan)
found.append(rate(model, ROWS))
if rank == 0:
    print(json.dumps(found), flush=True)
    os.wait()
os._exit(0)  # gloo's group may wait for the GIL of the thread that destroys it
"""
