"""A real training script with a target: a small network on made-up data, until its held-out loss is low enough.

With `LABELS=noisy` three labels in ten say nothing, so that no loss is low. At step `STAY_AT` it waits for `go on`.
"""

SCRIPT = """
import os, time, torch
from walras.training import Checkpoint, Loop
torch.set_num_threads(1)
torch.manual_seed(0)
teacher = torch.nn.Linear(20, 4)
inputs = torch.randn(21000, 20)
labels = teacher(inputs).argmax(1)
if os.environ.get("LABELS") == "noisy":
    labels = torch.where(torch.rand(len(labels)) < 0.3, torch.randint(0, 4, labels.shape), labels)
unseen, answers = inputs[20000:], labels[20000:]
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ.get("RATE", "0.01")))
data = torch.utils.data.TensorDataset(inputs[:20000], labels[:20000])
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
loop = Loop(Checkpoint(model=model, optimizer=optimizer))
until = float(os.environ.get("UNTIL", "0"))
is_there = False
for epoch in loop.epochs():
    for batch, wanted in loop.steps(loader):
        loss = torch.nn.functional.cross_entropy(model(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(float(os.environ.get("PAUSE_S", "0.01")))
        while str(loop.step) == os.environ.get("STAY_AT") and not os.path.exists("go on"):
            time.sleep(0.05)
        if loop.step % 10 == 0:
            with torch.no_grad():
                mean = float(torch.nn.functional.cross_entropy(model(unseen), answers))
            loop.report(loss=mean)
            if is_there := mean <= until:
                print(f"there at step {loop.step}", flush=True)
                break
    if is_there:
        break
"""
