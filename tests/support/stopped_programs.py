"""Programs that a stop reaches, as people have them: each says `up`, `caught` and `saved`."""

#: Saves for longer than leftover processes may live, and ends with `CODE`. One `write` a line: ranks share a pipe.
SAVER = r"""
import os, signal, sys, time
def stop(number, frame):
    sys.stdout.write("caught\n")
    time.sleep(float(os.environ.get("SAVE_S", "2.6")))
    sys.stdout.write("saved\n")
    sys.exit(int(os.environ.get("CODE", "85")))
signal.signal(signal.SIGTERM, stop)
sys.stdout.write("up\n")
while True:
    time.sleep(0.05)
"""
#: Asked by a file, which a trap makes.
ASKED = """
import os, time
print("up", flush=True)
while not os.path.exists("asked"):
    time.sleep(0.05)
print("caught", flush=True)
time.sleep(2.6)
print("saved", flush=True)
"""
#: Does not handle the signal; `up` once it runs.
PLAIN = "import time; print('up', flush=True); time.sleep(300)"
IN_C = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t asked = 0;
static void stop(int number) { asked = 1; }
static void *train(void *unused) {
    puts("up");
    while (!asked) usleep(50000);
    puts("caught");
    usleep(2600000);
    puts("saved");
    exit(85);
}
int main(int count, char **words) {
    pthread_t thread;
    signal(SIGTERM, count > 1 && *words[1] == 'i' ? SIG_IGN : stop);
    if (count > 1 && *words[1] == 'r') signal(SIGSEGV, stop);
    setvbuf(stdout, 0, _IONBF, 0);
    if (count < 2 || *words[1] == 'r') train(0);
    pthread_create(&thread, 0, train, 0);
    pthread_exit(0);
}
"""
#: As most trainers do it: a flag, looked at after each step.
LOADERS = r"""
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

asked = False

def stop(number, frame):
    global asked
    if not asked:
        sys.stdout.write("caught\n")
    asked = True

class Numbers(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return torch.tensor([float(index)])

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    workers = int(os.environ["W"])
    more = {"multiprocessing_context": os.environ.get("CONTEXT", "fork")} if workers else {}
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, persistent_workers="KEPT" in os.environ, **more)
    for step, batch in enumerate(loader):
        if step == 1:
            sys.stdout.write("up\n")
        time.sleep(0.1)
        if asked:
            time.sleep(float(os.environ.get("SAVE_S", "2.6")))
            sys.stdout.write("saved\n")
            sys.exit(85)
"""

#: Trains with the in-job client; `SAVE_S`, `STEP_S`, `EVALUATE_S`: how long that takes. Handles the signal if told to.
TRAINER = """
import os, signal, sys, time
from walras.training import Checkpoint, Loop

def seconds(name):
    return float(os.environ.get(name, "0.01"))

if "HANDLES" in os.environ:
    signal.signal(signal.SIGTERM, lambda *_: (print("caught", flush=True), sys.exit(1)))

class State:
    def state_dict(self):
        open("saving", "w").close()
        time.sleep(seconds("SAVE_S"))
        return {"n": 1}
    def load_state_dict(self, state):
        pass

loop = Loop(Checkpoint(state=State(), every_s=None))
for epoch in loop.epochs(1000):
    for step in loop.steps(range(10)):
        if step == int(os.environ.get("UP_AT", "5")):
            print("up", flush=True)
        time.sleep(seconds("STEP_S"))
    if epoch == 0:
        print("evaluates", flush=True)
        until = time.monotonic() + seconds("EVALUATE_S")
        while time.monotonic() < until:
            time.sleep(0.05)
        print("evaluated", flush=True)
"""

#: A gang whose rank 1 freezes before the exchange of step 12, as if its machine were gone.
GANG = """
import os, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from walras.training import Checkpoint, Loop

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(200, 200))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=None))
for step in loop.steps(range(100_000)):
    optimizer.zero_grad()
    if step == 12:
        print("up", flush=True)
        while loop._gang.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    model(torch.ones(4, 200)).sum().backward()
    optimizer.step()
"""

#: Starts its arguments, and ends at the signal without a word to them.
LEAVES = """
import os, signal, subprocess, sys
own = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: os._exit(85))
own.wait()
"""

#: As many save: in `except`, where a second signal breaks the save off.
RAISER = r"""
import os, signal, sys, time
def stop(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
sys.stdout.write("up\n")
try:
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    sys.stdout.write("caught\n")
    time.sleep(float(os.environ.get("SAVE_S", "2.6")))
    sys.stdout.write("saved\n")
    sys.exit(int(os.environ.get("CODE", "85")))
"""

#: Starts its arguments, passes the signal on to them and ends.
PASSES = """
import os, signal, subprocess, sys
def start(words):
    own = subprocess.Popen(words)
    signal.signal(signal.SIGTERM, lambda *_: (own.terminate(), os._exit(85)))
    sys.exit(own.wait())
if __name__ == "__main__":
    start(sys.argv[1:])
"""

#: A server of which a save is in need; it ends at the signal.
SERVER = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
open("served", "w").close()
while True:
    with open("asked") as asked:
        asked.read()
    open("answer", "w").write("saved\\n")
"""

#: The first process of a container, which takes up orphans, and ends once nothing is left below it.
INIT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)
first = os.fork()
if not first:
    os.execvp(sys.argv[1], sys.argv[1:])
codes = {}
try:
    while True:
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
except ChildProcessError:
    os._exit(codes[first] % 256)
"""

#: Hands the save to another process at the signal, and ends.
HANDS_ON = """
import os, signal, subprocess, sys, time
def stop(*_):
    print("caught", flush=True)
    save = "import time; time.sleep(2.6); print('saved', flush=True)"
    if sys.argv[1] == "start":
        subprocess.Popen([sys.executable, "-c", save], start_new_session=True)
    elif os.fork() == 0:
        exec(save)
    os._exit(85)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""

#: A daemon that runs what its client, `docker`, is told, and passes the client's signals on to the first process alone.
DAEMON = """
import json, os, signal, socket, subprocess, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
def serve(connection):
    told, (output,), _, _ = socket.recv_fds(connection, 1 << 20, 1)
    own = subprocess.Popen(**json.loads(told), stdout=output, stderr=output, start_new_session=True)
    os.close(output)
    connection.sendall(b"%d\\n" % own.pid)
    code = own.wait()
    subprocess.run(["pkill", "-KILL", "-s", str(own.pid)])
    connection.sendall(b"%d\\n" % code)
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
CLIENT = """
import json, os, signal, socket, sys
words, env, at = sys.argv[1:], {"PATH": os.environ["PATH"]}, 0
while words[at] != "an-image":
    if words[at] == "--env":
        name, has_value, value = words[at + 1].partition("=")
        env[name] = value if has_value else os.environ[name]
    at += 1
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["DAEMON"])
told = {"args": words[at + 1 :], "env": env, "cwd": words[words.index("--workdir") + 1]}
socket.send_fds(connection, [json.dumps(told).encode()], [1])
answers = connection.makefile()
pid = int(answers.readline())
signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
sys.exit(int(answers.readline()) % 256)
"""
